//! Paths stepped through virtual time, and run on threads.
