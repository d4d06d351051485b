//! A packet to the guest while its slots are read.

use crate::counters::VifDrop;
use crate::netif::{ExtraInfo, PeerCaps, RxResponse, extra, rxf, transport};
use nic::{Checksum, Frame, Gso, GsoKind};
use smallvec::SmallVec;

/// A packet while its slots are read.
pub(super) struct PacketBuilder<'a> {
    pub(super) frame: &'a mut Frame,
    pub(super) flags: u16,
    pub(super) gso: Option<Gso>,
    /// The buffer of each slot.
    pub(super) buffers: SmallVec<[u16; 4]>,
    /// Number of extra infos, which start at slot 1.
    pub(super) extras: u32,
    pub(super) verdict: Option<VifDrop>,
    /// Whether this is a buffer that was returned unused, not a packet.
    pub(super) unused: bool,
}

impl<'a> PacketBuilder<'a> {
    pub(super) fn new(frame: &'a mut Frame) -> Self {
        Self {
            frame,
            flags: 0,
            gso: None,
            buffers: SmallVec::new(),
            extras: 0,
            verdict: None,
            unused: false,
        }
    }

    pub(super) fn bad(&mut self, reason: VifDrop) {
        self.verdict.get_or_insert(reason);
    }

    /// Reads the metadata in the first response's id field (NETIF-21).
    pub(super) fn meta(&mut self, response: &RxResponse) {
        let kind = match response.flags & rxf::GSO {
            rxf::GSO_TCPV4 => GsoKind::Tcp4,
            rxf::GSO_TCPV6 => GsoKind::Tcp6,
            _ => return self.bad(VifDrop::BadExtra),
        };
        self.gso = Some(Gso {
            kind,
            size: response.id,
        });
        if response.id == 0 {
            self.bad(VifDrop::BadExtra);
        }
    }

    pub(super) fn extra(&mut self, info: &ExtraInfo) {
        self.extras += 1;
        match (info.kind, info.gso.gso()) {
            (extra::TYPE_GSO, Some(gso)) if self.gso.is_none() => {
                self.gso = Some(gso);
            }
            _ => self.bad(VifDrop::BadExtra),
        }
    }

    /// Takes the snapshot and sets the offloads.
    #[inline]
    pub(super) fn finish(&mut self, may: &PeerCaps) -> Result<(), VifDrop> {
        let frame = &mut *self.frame;
        transport::check_len(frame.len())?;
        frame.snapshot().map_err(|_| VifDrop::Fault)?;
        if self.flags & rxf::CSUM_BLANK != 0 {
            frame.offload = transport::set_offloads(frame, self.gso, may)?;
        } else if self.gso.is_some() {
            return Err(VifDrop::BadOffload);
        } else if self.flags & rxf::DATA_VALIDATED != 0 {
            frame.offload.checksum = Checksum::Valid;
        }
        Ok(())
    }
}
