"""Between text and tokens, without torch: tokenizer, chat template, detokenizer, stop strings."""
