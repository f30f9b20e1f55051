"""A serving engine without a clock: sequences, a paged KV cache, policies, step times, clusters."""
