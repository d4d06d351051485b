//! The records of the two ends of a network interface. They are the body of a connection's record
//! (`abi::connect`), and take the place of xenstore's keys.
//!
//! ```text
//!   backend   offset  0 u32 magic, 4 u16 version, 6 u16 max-slots, 8 u32 features,
//!                    12 u8 max-ring-page-order
//!   frontend  offset  0 u32 magic, 4 u16 version, 6 u16 max-slots, 8 u32 features,
//!                    12 u8 tx order, 13 u8 rx order, 14 u16 bytes of a receive buffer,
//!                    16 u32 grant of the event page, 20 6 bytes MAC,
//!                    28 u32 table of counted grants (0: the classic table), or exchange,
//!                    32 u32 × 16 grants of the tx ring, 96 u32 × 16 grants of the rx ring
//! ```
//!
//! Numbers are little-endian; unnamed bytes are 0. A record is checked once, when it is decoded
//! (row 24 of the attack table in SPECIFICATION); clauses NETIF-14 to NETIF-17.

use super::features::Features;
use super::limits::MAX_SLOTS_STOCK;
use crate::ring::{ORDER_MAX, PAGES_MAX};
use abi::{GrantRef, Handle, PAGE, RECORD_BYTES};
use smallvec::SmallVec;

/// "GWNB": a network backend's record.
const MAGIC_BACK: u32 = u32::from_le_bytes(*b"GWNB");
/// "GWNF": a network frontend's record.
const MAGIC_FRONT: u32 = u32::from_le_bytes(*b"GWNF");
/// Version of both records.
const VERSION: u16 = 1;

/// Smallest receive buffer that may be negotiated.
pub const RX_BUFFER_MIN: usize = 2048;

/// Reason why a record is unusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Not a record of this kind.
    #[error("not a network interface's record")]
    Magic,
    /// An unsupported version.
    #[error("record version {0} is unsupported (1 is supported)")]
    Version(u16),
    /// Fewer slots per packet than every end must accept.
    #[error("max-slots is below 18")]
    MaxSlots,
    /// A ring larger than the maximum, or than the backend's limit.
    #[error("the ring order exceeds the backend's limit")]
    RingOrder,
    /// A receive buffer larger than a page, or smaller without the extension `rx-offset`.
    #[error("receive buffers are neither pages nor negotiated parts of pages")]
    RxBuffer,
    /// `RX_COPY` is missing: only copying into granted pages is supported.
    #[error("the frontend does not request rx-copy")]
    RxCopy,
    /// A grant reference is missing or named twice.
    #[error("a grant reference of a ring or event page is missing or repeated")]
    Reference,
    /// A group address or a zero MAC.
    #[error("the MAC address is not unicast")]
    Mac,
}

/// A backend's offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackRecord {
    /// Features that it accepts from the guest.
    pub features: Features,
    /// log2 of the pages of the largest ring that it accepts (`max-ring-page-order`).
    pub max_order: u8,
    /// Maximum data slots of one packet, in both directions.
    pub max_slots: u16,
}

/// A frontend's choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontRecord {
    /// Features that it accepts from the backend.
    pub features: Features,
    /// Maximum data slots of one packet, in both directions.
    pub max_slots: u16,
    /// Bytes of a receive buffer.
    pub rx_buffer: u16,
    /// The frontend's MAC.
    pub mac: [u8; 6],
    /// Table of counted grants to which all references belong; 0: the frontend's classic table.
    /// With [`Features::RX_FLIP`] this names the exchange instead, and references belong to the
    /// classic table.
    pub table: Handle,
    /// The grant of the event channel's page.
    pub event: GrantRef,
    /// Grants of the pages of the ring from the guest, in order.
    pub tx_ring: SmallVec<[GrantRef; PAGES_MAX]>,
    /// Grants of the pages of the ring to the guest, in order.
    pub rx_ring: SmallVec<[GrantRef; PAGES_MAX]>,
}

const TABLE: usize = 28;
const TX_REFS: usize = 32;
const RX_REFS: usize = 96;

impl BackRecord {
    /// Encodes a record's body.
    #[must_use]
    pub fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut body = Body([0; RECORD_BYTES]);
        body.head(MAGIC_BACK, self.max_slots, self.features);
        body.put(12, &[self.max_order]);
        body.0
    }

    /// Decodes a record's body.
    ///
    /// # Errors
    /// Returns [`RecordError`] if the record is unusable.
    pub fn decode(body: &[u8; RECORD_BYTES]) -> Result<Self, RecordError> {
        let body = Body(*body);
        let (max_slots, features) = body.check_head(MAGIC_BACK)?;
        let max_order = body.u8(12);
        if max_order > ORDER_MAX {
            return Err(RecordError::RingOrder);
        }
        Ok(Self {
            features,
            max_order,
            max_slots,
        })
    }
}

impl FrontRecord {
    /// Returns log2 of the pages of the ring from the guest.
    #[must_use]
    pub fn tx_order(&self) -> u8 {
        self.tx_ring.len().trailing_zeros() as u8
    }

    /// Returns log2 of the pages of the ring to the guest.
    #[must_use]
    pub fn rx_order(&self) -> u8 {
        self.rx_ring.len().trailing_zeros() as u8
    }

    /// Encodes a record's body.
    #[must_use]
    pub fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut body = Body([0; RECORD_BYTES]);
        body.head(MAGIC_FRONT, self.max_slots, self.features);
        body.put(12, &[self.tx_order(), self.rx_order()]);
        body.put(14, &self.rx_buffer.to_le_bytes());
        body.put(16, &self.event.0.to_le_bytes());
        body.put(20, &self.mac);
        body.put(TABLE, &self.table.0.to_le_bytes());
        for (at, refs) in [(TX_REFS, &self.tx_ring), (RX_REFS, &self.rx_ring)] {
            for (n, gref) in refs.iter().take(PAGES_MAX).enumerate() {
                body.put(at + n * 4, &gref.0.to_le_bytes());
            }
        }
        body.0
    }

    /// Decodes a record's body.
    ///
    /// # Errors
    /// Returns [`RecordError`] if the record is unusable.
    pub fn decode(body: &[u8; RECORD_BYTES]) -> Result<Self, RecordError> {
        let body = Body(*body);
        let (max_slots, features) = body.check_head(MAGIC_FRONT)?;
        let rx_buffer = body.u16(14);
        if !(RX_BUFFER_MIN..=PAGE).contains(&usize::from(rx_buffer)) {
            return Err(RecordError::RxBuffer);
        }
        let mac = body.bytes::<6>(20);
        if mac[0] & 1 != 0 || mac == [0; 6] {
            return Err(RecordError::Mac);
        }
        let refs = |order: u8, at: usize| {
            if order > ORDER_MAX {
                return Err(RecordError::RingOrder);
            }
            Ok((0..1_usize << order)
                .map(|n| GrantRef(body.u32(at + n * 4)))
                .collect())
        };
        let record = Self {
            features,
            max_slots,
            rx_buffer,
            mac,
            table: Handle(body.u32(TABLE)),
            event: GrantRef(body.u32(16)),
            tx_ring: refs(body.u8(12), TX_REFS)?,
            rx_ring: refs(body.u8(13), RX_REFS)?,
        };
        let mut all: Vec<u32> = record.references().map(|gref| gref.0).collect();
        all.sort_unstable();
        if all.first() == Some(&0) || all.windows(2).any(|two| two[0] == two[1]) {
            return Err(RecordError::Reference);
        }
        Ok(record)
    }

    /// Iterates over the grants of all pages that the backend must map: those of the tx ring, of
    /// the rx ring, and the event page.
    pub fn references(&self) -> impl Iterator<Item = GrantRef> + '_ {
        self.tx_ring
            .iter()
            .chain(&self.rx_ring)
            .copied()
            .chain([self.event])
    }
}

/// A record's body, accessed by offset. Offsets are constants, never a peer's values.
struct Body([u8; RECORD_BYTES]);

impl Body {
    fn put(&mut self, at: usize, bytes: &[u8]) {
        if let Some(to) = self.0.get_mut(at..at + bytes.len()) {
            to.copy_from_slice(bytes);
        }
    }

    fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        self.0
            .get(at..at + N)
            .and_then(|from| from.try_into().ok())
            .unwrap_or([0; N])
    }

    fn u8(&self, at: usize) -> u8 {
        u8::from_le_bytes(self.bytes(at))
    }

    fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.bytes(at))
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.bytes(at))
    }

    fn head(&mut self, magic: u32, max_slots: u16, features: Features) {
        self.put(0, &magic.to_le_bytes());
        self.put(4, &VERSION.to_le_bytes());
        self.put(6, &max_slots.to_le_bytes());
        self.put(8, &features.0.to_le_bytes());
    }

    fn check_head(&self, magic: u32) -> Result<(u16, Features), RecordError> {
        if self.u32(0) != magic {
            return Err(RecordError::Magic);
        }
        let version = self.u16(4);
        if version != VERSION {
            return Err(RecordError::Version(version));
        }
        let max_slots = self.u16(6);
        if max_slots < MAX_SLOTS_STOCK {
            return Err(RecordError::MaxSlots);
        }
        Ok((max_slots, Features(self.u32(8))))
    }
}
