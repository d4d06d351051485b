//! Plans, runs, statistics and reports
