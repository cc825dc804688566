"""Files and state dicts: every foreign name, index base and packing ends here."""
