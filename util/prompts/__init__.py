"""What a model reads: prompts, the roles of their parts, and the tokens that these fall on."""
