//! The version of this crate's layouts and calls with which a program was built. An ELF note in the
//! program's file contains it, so that the monitor can reject a new program before it kills the
//! running one.

/// The version of the protocol between the monitor and its domains (start info, shared words, call
/// page, hypercalls, tables), and between the core and its helpers (records, the machine's
/// description, the notes that a helper leaves for its successor). Every incompatible change of
/// either protocol increments it.
pub const VERSION: u32 = 11;

/// The note's owner, with its terminating NUL.
pub const OWNER: &[u8] = b"Grantway\0";
/// The note's type: a version, as a u32.
pub const VERSION_NOTE: u32 = 1;
/// Size of a note's header in bytes: the sizes of owner and description, and the type.
const HEADER_BYTES: usize = 12;

/// Returns the version in a program's notes, which are padded to `align` bytes each. The notes may
/// contain any bytes.
#[must_use]
pub fn version_in(mut notes: &[u8], align: usize) -> Option<u32> {
    let padded = |bytes: u32| (bytes as usize).checked_next_multiple_of(align.max(1));
    loop {
        let word = |at: usize| {
            let word = notes.get(at..)?.first_chunk::<4>()?;
            Some(u32::from_le_bytes(*word))
        };
        let (owner_bytes, kind) = (word(0)?, word(8)?);
        let description = HEADER_BYTES.checked_add(padded(owner_bytes)?)?;
        let next = description.checked_add(padded(word(4)?)?)?;
        let owner = notes.get(HEADER_BYTES..)?.get(..owner_bytes as usize)?;
        if owner == OWNER && kind == VERSION_NOTE {
            return word(description);
        }
        notes = notes.get(next..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(owner: &[u8], kind: u32, description: &[u8], align: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        for word in [owner.len() as u32, description.len() as u32, kind] {
            bytes.extend(word.to_le_bytes());
        }
        for part in [owner, description] {
            bytes.extend(part);
            bytes.resize(bytes.len().next_multiple_of(align), 0);
        }
        bytes
    }

    #[test]
    fn the_version_is_found_among_other_notes() {
        let own = note(OWNER, VERSION_NOTE, &7u32.to_le_bytes(), 4);
        let other = note(b"GNU\0", 3, &[1, 2, 3, 4, 5], 4);
        let strange = note(OWNER, 9, &[], 4);
        let all = [other.clone(), strange, own.clone(), other].concat();
        assert_eq!(version_in(&all, 4), Some(7));
        assert_eq!(version_in(&own, 4), Some(7));
        assert_eq!(version_in(&note(b"GNU\0", 5, &[0; 16], 8), 8), None);
    }

    #[test]
    fn notes_of_false_length_are_ignored() {
        let own = note(OWNER, VERSION_NOTE, &7u32.to_le_bytes(), 4);
        for end in 0..own.len() {
            assert_eq!(version_in(&own[..end], 4), None, "{end}");
        }
        for at in [0, 4] {
            for length in [u32::MAX, u32::MAX - 3, 1 << 31] {
                let mut wrong = own.clone();
                wrong[at..at + 4].copy_from_slice(&length.to_le_bytes());
                assert_eq!(version_in(&wrong, 4), if at == 4 { Some(7) } else { None });
            }
        }
        assert_eq!(version_in(&[0; 64], 0), None);
    }
}
