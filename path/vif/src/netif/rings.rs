//! The two rings of an interface, and where their control blocks lie if they are native ones:
//! in the event channel's page, behind its words (NETIF-25).

use super::terms::Terms;
use crate::ring::{Back, BadPages, CONTROL_BYTES, Front, Pages};
use shmem::Span;

/// Words of a request of the ring from the guest (`netif_tx_request`: 12 bytes).
pub const TX_REQUEST: usize = 3;
/// Words of its responses (`netif_tx_response`: 4 bytes).
pub const TX_RESPONSE: usize = 1;
/// Words of a request of the ring to the guest (`netif_rx_request`: 8 bytes).
pub const RX_REQUEST: usize = 2;
/// Words of its responses (`netif_rx_response`: 8 bytes).
pub const RX_RESPONSE: usize = 2;

/// The ring from the guest, at the driver domain's end.
pub type TxBack = Back<Pages, TX_REQUEST, TX_RESPONSE>;
/// The ring to the guest, at the driver domain's end.
pub type RxBack = Back<Pages, RX_REQUEST, RX_RESPONSE>;
/// The ring from the guest, at its own end.
pub type TxFront = Front<Pages, TX_REQUEST, TX_RESPONSE>;
/// The ring to the guest, at its own end.
pub type RxFront = Front<Pages, RX_REQUEST, RX_RESPONSE>;

/// Offset of the first control block in the event channel's page; the second one follows.
const CONTROL: usize = 256;

/// The pages of both rings, as agreed: the one from the guest, the one to it.
///
/// # Errors
/// [`BadPages`].
pub fn rings(
    terms: &Terms,
    tx: &[Span],
    rx: &[Span],
    event_page: Span,
) -> Result<(Pages, Pages), BadPages> {
    let made = |pages: &[Span], order: u8, number: usize| {
        if pages.len() != 1 << order {
            return Err(BadPages);
        }
        Pages::new(terms.format, pages, control(event_page, number))
    };
    Ok((made(tx, terms.tx_order, 0)?, made(rx, terms.rx_order, 1)?))
}

/// The control block of ring `number`.
#[must_use]
pub fn control(event_page: Span, number: usize) -> Span {
    event_page
        .sub(CONTROL + number * CONTROL_BYTES, CONTROL_BYTES)
        .unwrap_or(Span::EMPTY)
}
