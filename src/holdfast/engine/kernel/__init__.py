"""What every part of the engine shares: the store, the clock, the settings, and notifications."""
