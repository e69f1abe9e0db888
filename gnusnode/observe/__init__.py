"""What a node tells about itself: metrics, events, stages, traces, health, logs."""
