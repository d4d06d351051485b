//! Groups of this system.

use std::fs;

/// Returns the id of a group.
///
/// # Panics
///
/// Panics if the group does not exist.
#[must_use]
#[track_caller]
pub fn group_id(name: &str) -> u32 {
    let groups = fs::read_to_string("/etc/group").expect("a system has groups");
    let mut groups = groups.lines().map(|line| line.split(':'));
    let found = groups.find_map(|mut words| (words.next()? == name).then(|| words.nth(1)));
    found.flatten().expect("the group").parse().expect("an id")
}
