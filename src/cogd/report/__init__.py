"""Results files in, one static page out."""

from cogd.report.page import write_report as write_report
