"""Rules of convolutions: their constants, taps and channels, and those that are products. Part of rewrite."""
