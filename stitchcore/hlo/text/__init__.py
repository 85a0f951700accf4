"""HLO text: tokenizer, parser, printer."""
