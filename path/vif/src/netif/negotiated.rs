//! Features negotiated between the two ends.

use super::features::{Features, PeerCaps};
use super::limits::{MAX_SLOTS, MAX_SLOTS_STOCK};
use super::record::{BackRecord, FrontRecord, RecordError};
use crate::ring::Format;
use abi::PAGE;

/// Features negotiated by two records. Both ends compute the same result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// Ring format.
    pub format: Format,
    /// log2 of the pages of the ring from the guest.
    pub tx_order: u8,
    /// log2 of the pages of the ring to the guest.
    pub rx_order: u8,
    /// Bytes of a receive buffer: a page, or with `rx-offset` a part of one.
    pub rx_buffer: u16,
    /// Whether receive requests carry an offset.
    pub rx_offset: bool,
    /// Whether the first response of a packet to the guest carries its segment size.
    pub rx_meta: bool,
    /// Whether receive responses may be in any order, each with its request's id.
    pub any_order: bool,
    /// Whether the frontend's CPU writes and reads payload.
    pub cpu_payload: bool,
    /// Abilities for frames from the backend to the guest.
    pub to_guest: PeerCaps,
    /// Abilities for frames from the guest to the backend.
    pub from_guest: PeerCaps,
    /// The MAC that the guest claims.
    pub mac: [u8; 6],
}

impl Negotiated {
    /// Negotiates the features.
    ///
    /// # Errors
    /// Returns an error if the front requests a feature that the back does not offer.
    pub fn of(back: &BackRecord, front: &FrontRecord) -> Result<Self, RecordError> {
        if front.tx_order() > back.max_order || front.rx_order() > back.max_order {
            return Err(RecordError::RingOrder);
        }
        if !front.features.has(Features::RX_COPY) {
            return Err(RecordError::RxCopy);
        }
        let both = |feature| back.features.has(feature) && front.features.has(feature);
        let rx_offset = both(Features::RX_OFFSET);
        if !rx_offset && usize::from(front.rx_buffer) != PAGE {
            return Err(RecordError::RxBuffer);
        }
        if both(Features::RX_FLIP) && usize::from(front.rx_buffer) != PAGE {
            return Err(RecordError::RxBuffer);
        }
        let any_order = both(Features::RX_ANY_ORDER);
        let slots = |own: u16, peer: u16| own.min(peer).clamp(MAX_SLOTS_STOCK, MAX_SLOTS);
        let max_slots = slots(back.max_slots, front.max_slots);
        Ok(Self {
            format: if both(Features::NATIVE_RINGS) {
                Format::Native
            } else {
                Format::Xen
            },
            tx_order: front.tx_order(),
            rx_order: front.rx_order(),
            rx_buffer: front.rx_buffer,
            rx_offset,
            // With `any-order`, the first response names its buffer in the field of the size.
            rx_meta: both(Features::RX_META) && !any_order,
            any_order,
            cpu_payload: front.features.has(Features::CPU_PAYLOAD),
            to_guest: PeerCaps::of(front.features, max_slots),
            from_guest: PeerCaps::of(back.features, max_slots),
            mac: front.mac,
        })
    }
}
