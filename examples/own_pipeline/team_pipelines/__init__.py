"""A team's pipelines on top of kubetrain's stages."""
