"""What a report that is passed on shows beyond the verdict. Imported only where such a report was asked for."""
