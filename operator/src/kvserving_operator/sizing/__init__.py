"""A first sizing of a service: devices, replicas and tiers from a model, a device, lengths and a rate.

Pure: no client, no clock, no file. What is known of the model comes in, lines with their arithmetic come out. The
model of the two phases is a roofline. Prefill computes: it takes its floating-point operations over a share of the
device's peak, and one prompt after the other, so that prompts wait as in a queue with constant service times (M/D/1;
so do DistServe, Zhong et al., OSDI 2024, and Splitwise, Patel et al., ISCA 2024, which size the phases apart). Decode
reads: a step takes the bytes of the weights and of the KV of its batch over a share of the memory's bandwidth. Both
roles are filled to a stated utilisation only, and the cheapest pair of tensor parallel sizes that meets the targets is
taken. Peers that sweep measured kernels (AIConfigurator of NVIDIA Dynamo) are more exact for what they have measured;
this one says for each figure where it comes from, and takes measurements of the user's in their place.
"""
