//! The virtio-net header that precedes a frame of a TAP or a virtqueue (`struct virtio_net_hdr`, 10
//! bytes, little endian).

use crate::Frame;
use crate::frame::ETHERNET_BYTES;
use crate::offload::{Checksum, Gso, GsoKind, Offload};

/// Length of the header in bytes.
pub const HEADER_BYTES: usize = 10;

const F_NEEDS_CSUM: u8 = 1;
const F_DATA_VALID: u8 = 2;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;

/// Error of a header that does not fit its frame, or uses an offload that was not negotiated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MalformedHeader;

/// Decodes the header of a frame of `len` bytes. `checksum` and `tso` are the negotiated offloads.
///
/// # Errors
/// Returns [`MalformedHeader`] if the header does not fit the frame, or uses an offload that was
/// not negotiated.
pub fn decode(
    header: &[u8; HEADER_BYTES],
    len: usize,
    checksum: bool,
    tso: bool,
) -> Result<Offload, MalformedHeader> {
    let [
        flags,
        gso_type,
        _,
        _,
        size0,
        size1,
        start0,
        start1,
        offset0,
        offset1,
    ] = *header;
    let start = u16::from_ne_bytes([start0, start1]);
    let offset = u16::from_ne_bytes([offset0, offset1]);
    let state = if flags & F_NEEDS_CSUM != 0 {
        let end = usize::from(start) + usize::from(offset) + 2;
        if !checksum || usize::from(start) < ETHERNET_BYTES || end > len {
            return Err(MalformedHeader);
        }
        Checksum::Blank { start, offset }
    } else if flags & F_DATA_VALID != 0 {
        Checksum::Valid
    } else {
        Checksum::Unknown
    };
    let kind = match gso_type {
        GSO_NONE => {
            return Ok(Offload {
                checksum: state,
                gso: None,
            });
        }
        GSO_TCPV4 => GsoKind::Tcp4,
        GSO_TCPV6 => GsoKind::Tcp6,
        _ => return Err(MalformedHeader),
    };
    let size = u16::from_ne_bytes([size0, size1]);
    if !tso || size == 0 || !matches!(state, Checksum::Blank { .. }) {
        return Err(MalformedHeader);
    }
    Ok(Offload {
        checksum: state,
        gso: Some(Gso { kind, size }),
    })
}

/// Encodes the header of a frame whose protocol headers end at `headers`. Without a pending
/// offload, `headers` is ignored.
#[must_use]
pub fn encode(offload: Offload, headers: u16) -> [u8; HEADER_BYTES] {
    let (flags, start, offset) = match offload.checksum {
        Checksum::Unknown => (0, 0, 0),
        Checksum::Valid => (F_DATA_VALID, 0, 0),
        Checksum::Blank { start, offset } => (F_NEEDS_CSUM, start, offset),
    };
    let (gso_type, size) = match offload.gso {
        None => (GSO_NONE, 0),
        Some(Gso {
            kind: GsoKind::Tcp4,
            size,
        }) => (GSO_TCPV4, size),
        Some(Gso {
            kind: GsoKind::Tcp6,
            size,
        }) => (GSO_TCPV6, size),
    };
    let headers = if flags & F_NEEDS_CSUM != 0 {
        headers
    } else {
        0
    };
    let [h0, h1] = headers.to_ne_bytes();
    let [g0, g1] = size.to_ne_bytes();
    let [s0, s1] = start.to_ne_bytes();
    let [o0, o1] = offset.to_ne_bytes();
    [flags, gso_type, h0, h1, g0, g1, s0, s1, o0, o1]
}

/// Returns the length of the frame's protocol headers, which the kernel keeps contiguous. The
/// kernel checks the value and corrects a value that is too small.
#[must_use]
pub fn headers(frame: &Frame) -> u16 {
    let Checksum::Blank { start, offset } = frame.offload.checksum else {
        return 0;
    };
    let end = if frame.offload.gso.is_some() {
        let words = frame
            .header()
            .get(usize::from(start) + 12)
            .map_or(5, |byte| byte >> 4);
        usize::from(start) + usize::from(words) * 4
    } else {
        usize::from(start) + usize::from(offset) + 2
    };
    end.min(frame.len()) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLANK: Checksum = Checksum::Blank {
        start: 34,
        offset: 16,
    };

    #[test]
    fn encoded_values_decode() {
        for offload in [
            Offload::default(),
            Offload {
                checksum: Checksum::Valid,
                gso: None,
            },
            Offload {
                checksum: BLANK,
                gso: None,
            },
            Offload {
                checksum: BLANK,
                gso: Some(Gso {
                    kind: GsoKind::Tcp4,
                    size: 1448,
                }),
            },
            Offload {
                checksum: BLANK,
                gso: Some(Gso {
                    kind: GsoKind::Tcp6,
                    size: 1,
                }),
            },
        ] {
            assert_eq!(decode(&encode(offload, 66), 9000, true, true), Ok(offload));
        }
    }

    #[test]
    fn unnegotiated_offloads_are_malformed() {
        let blank = encode(
            Offload {
                checksum: BLANK,
                gso: None,
            },
            66,
        );
        assert_eq!(decode(&blank, 9000, false, false), Err(MalformedHeader));
        let gso = Some(Gso {
            kind: GsoKind::Tcp4,
            size: 1448,
        });
        assert_eq!(
            decode(
                &encode(
                    Offload {
                        checksum: BLANK,
                        gso
                    },
                    66
                ),
                9000,
                true,
                false
            ),
            Err(MalformedHeader)
        );
    }

    #[test]
    fn invalid_headers_are_malformed() {
        let blank = encode(
            Offload {
                checksum: BLANK,
                gso: None,
            },
            66,
        );
        assert_eq!(
            decode(&blank, 51, true, true),
            Err(MalformedHeader),
            "the field lies after the end"
        );
        assert!(decode(&blank, 52, true, true).is_ok());
        let mut early = blank;
        early[6..8].copy_from_slice(&13u16.to_ne_bytes());
        assert_eq!(
            decode(&early, 9000, true, true),
            Err(MalformedHeader),
            "the start lies within the MAC header"
        );
        let mut far = blank;
        far[6..10].fill(0xff);
        assert_eq!(decode(&far, 9000, true, true), Err(MalformedHeader));
        for (kind, size) in [(1, 0u16), (3, 1448), (5, 1448), (0x81, 1448), (0xff, 1448)] {
            let mut gso = blank;
            gso[1] = kind;
            gso[4..6].copy_from_slice(&size.to_ne_bytes());
            assert_eq!(
                decode(&gso, 9000, true, true),
                Err(MalformedHeader),
                "{kind} {size}"
            );
        }
        let unchecked = encode(
            Offload {
                checksum: Checksum::Unknown,
                gso: Some(Gso {
                    kind: GsoKind::Tcp4,
                    size: 1448,
                }),
            },
            66,
        );
        assert_eq!(
            decode(&unchecked, 9000, true, true),
            Err(MalformedHeader),
            "segmentation needs a blank checksum"
        );
    }
}
