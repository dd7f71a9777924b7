"""What the cluster counts and times, from the step of an engine to the text that is scraped."""
