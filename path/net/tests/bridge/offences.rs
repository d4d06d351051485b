//! BR-24: the first forged frame of each kind is recorded.

use super::*;
use net::bridge::{ForgedIdentity, Offence};

#[test]
fn the_first_forged_frame_of_each_kind_is_kept() {
    let mut bridge = bridge();
    let forged = |reason, claim, owner| Offence {
        reason,
        claim,
        owner,
    };
    let source = forged(DropReason::ForgedSource, ForgedIdentity::Mac(STATION), None);
    let address = ForgedIdentity::Address("10.0.0.11".parse().unwrap());
    let arp = forged(DropReason::ForgedArp, address, Some(B));
    for (mac, ip) in [(STATION, [10, 0, 0, 10]), (MAC_A, [10, 0, 0, 11])] {
        go(&mut bridge, &arp_from(mac, mac, ip), A, 0);
    }
    assert_eq!(bridge.offences(A), [source, arp]);
    assert_eq!(bridge.new_offences(), [(A, source), (A, arp)]);
    // Neither a repetition nor another forgery of the same kind is recorded.
    go(&mut bridge, &plain(MAC_B, OTHER), A, 0);
    go(&mut bridge, &arp_from(MAC_A, MAC_A, [10, 0, 0, 12]), A, 0);
    assert_eq!(bridge.new_offences(), []);
    assert_eq!(bridge.offences(A), [source, arp]);
    // Drops that are not forgeries are not recorded.
    go(&mut bridge, &plain(MAC_A, MAC_A), A, 0);
    assert_eq!((bridge.offences(A).len(), bridge.offences(B).len()), (2, 0));
    // Another guest's MAC.
    go(&mut bridge, &plain(MAC_A, MAC_A2), B, 0);
    let taken = forged(
        DropReason::ForgedSource,
        ForgedIdentity::Mac(MAC_A2),
        Some(A),
    );
    assert_eq!(bridge.new_offences(), [(B, taken)]);
    // The next guest of the port starts without offences.
    bridge.remove(A);
    bridge.add(A, &guest(&[MAC_A], &[])).unwrap();
    assert_eq!(bridge.offences(A), []);
    go(&mut bridge, &plain(MAC_B, OTHER), A, 0);
    assert_eq!(bridge.new_offences().len(), 1);
}
