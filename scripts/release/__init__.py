"""A release: wheels, chart, manifests and images, the same bytes from the same commit, with SBOMs and checksums.

``python -m scripts.release --help`` says how; docs/releasing.md says when. Nothing is published.
"""
