"""The name server: which broker has which topics and channels. It keeps nothing on disk, since
brokers tell it all again when they connect. It knows nothing of the broker but its protocol."""
