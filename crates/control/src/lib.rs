//! Who is alive and what everyone is doing: faults, announcements, the monitor.
