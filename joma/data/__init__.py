"""What networks are trained on: text, latent trees, class-conditional tokens, source code."""
