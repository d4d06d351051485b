//! Sends frames to the interface.

use nic::virtio;
use nic::{Checksum, Frame, TxReport};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Send parameters, which match the interface's set-up.
#[derive(Clone, Copy, Debug)]
pub(super) struct TxLimits {
    pub(super) vnet_header: bool,
    pub(super) checksum: bool,
    pub(super) tso: bool,
    /// Maximum length in bytes of a frame without segmentation, not counting a VLAN tag.
    pub(super) max_frame: usize,
}

/// The I/O vectors of the current frame, kept to reuse their allocation.
#[derive(Default)]
pub(super) struct FrameSender {
    vectors: Vec<libc::iovec>,
}

// SAFETY: the pointers in `vectors` are used only during a call with exclusive access, and each
// call sets them again.
unsafe impl Send for FrameSender {}

impl std::fmt::Debug for FrameSender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sender").finish_non_exhaustive()
    }
}

impl FrameSender {
    /// Sends a frame with one system call, without copying its snapshot or payload.
    pub(super) fn send_frame(
        &mut self,
        fd: BorrowedFd<'_>,
        limits: TxLimits,
        frame: &Frame,
        report: &mut TxReport,
    ) {
        if !acceptable(frame, limits) {
            report.refused += 1;
            return;
        }
        let header = if limits.vnet_header {
            virtio::encode(frame.offload, virtio::headers(frame))
        } else {
            [0; virtio::HEADER_BYTES]
        };
        self.vectors.clear();
        if limits.vnet_header {
            self.vectors.push(libc::iovec {
                iov_base: header.as_ptr().cast_mut().cast(),
                iov_len: header.len(),
            });
        }
        let snapshot = frame.header();
        self.vectors.push(libc::iovec {
            iov_base: snapshot.as_ptr().cast_mut().cast(),
            iov_len: snapshot.len(),
        });
        self.vectors.extend(frame.payload().map(|span| libc::iovec {
            iov_base: span.as_ptr().cast(),
            iov_len: span.len(),
        }));
        if self.vectors.len() > libc::UIO_MAXIOV as usize {
            report.refused += 1;
            return;
        }
        // SAFETY: the kernel only reads. The vectors are `header` and the frame's snapshot, which
        // are borrowed during the call, and spans in memory that is reserved for packets for the
        // life of the process. If a page is inaccessible, the call returns EFAULT.
        let sent = unsafe {
            libc::writev(
                fd.as_raw_fd(),
                self.vectors.as_ptr(),
                self.vectors.len() as libc::c_int,
            )
        };
        if sent >= 0 {
            report.sent += 1;
            report.bytes += frame.len() as u64;
            return;
        }
        match io::Error::last_os_error().raw_os_error() {
            Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => report.full += 1,
            Some(libc::EFAULT) => report.fault += 1,
            _ => report.refused += 1,
        }
    }
}

/// Returns whether the interface can send the frame unchanged.
fn acceptable(frame: &Frame, limits: TxLimits) -> bool {
    let blank = match frame.offload.checksum {
        Checksum::Unknown | Checksum::Valid => false,
        Checksum::Blank { start, offset } => {
            let end = usize::from(start) + usize::from(offset) + 2;
            if !limits.checksum || usize::from(start) < super::length::ETHERNET || end > frame.len()
            {
                return false;
            }
            true
        }
    };
    if frame.header().len() < super::length::ETHERNET {
        return false;
    }
    match frame.offload.gso {
        Some(gso) => {
            limits.tso && blank && gso.size != 0 && frame.len() <= super::length::GSO_FRAME_MAX
        }
        None => {
            let tagged = matches!(
                frame.header().get(12..14),
                Some([0x81, 0x00] | [0x88, 0xa8])
            );
            let tag = if tagged { super::length::VLAN_TAG } else { 0 };
            frame.len() <= limits.max_frame.saturating_add(tag)
        }
    }
}
