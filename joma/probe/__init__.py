"""Taps on foreign models, callbacks, checkpoint series and their audit."""
