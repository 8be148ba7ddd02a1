"""The page: `build` wires it, `view` turns messages into plain data, `theme` has its looks. No torch here."""
