"""What is known about vLLM engines: versions, images and their command line."""
