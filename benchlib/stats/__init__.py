"""The statistics: pure, from frames of trials to frames of effects."""
