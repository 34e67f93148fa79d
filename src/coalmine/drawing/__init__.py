"""Building blocks of reports: HTML, Vega-Lite figures, sections. Used by methods and by the report."""
