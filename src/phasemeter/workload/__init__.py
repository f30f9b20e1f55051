"""What is due when: arrivals, lengths, prompts, traces, conversations. Sends nothing."""
