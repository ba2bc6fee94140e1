"""One study: its trials, the environment that runs them, its saved results, and the frames read from them."""
