"""OpenAI's HTTP dialect: what the stock clients send, and what they expect back."""
