"""The Hugging Face hub, through its HTTP API."""
