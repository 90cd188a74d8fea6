"""The queries of DeepSeek-V4's attention, and a token's entry, which is key and value of all heads."""
