"""The page at `/`: its files lie here as they are served, without a build step."""
