"""The knob of a method that follows head scores, chosen on questions of its own and confirmed on others."""
