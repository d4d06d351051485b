//! BR-24: the first frame of each kind that a guest forged is kept.

use super::*;
use net::bridge::{Claim, Offence};

#[test]
fn the_first_forged_frame_of_each_kind_is_kept() {
    let mut bridge = bridge();
    let forged = |reason, claim, owner| Offence {
        reason,
        claim,
        owner,
    };
    let source = forged(DropReason::ForgedSource, Claim::Mac(STATION), None);
    let address = Claim::Address("10.0.0.11".parse().unwrap());
    let arp = forged(DropReason::ForgedArp, address, Some(B));
    for (mac, ip) in [(STATION, [10, 0, 0, 10]), (MAC_A, [10, 0, 0, 11])] {
        go(&mut bridge, &arp_from(mac, mac, ip), A, 0);
    }
    assert_eq!(bridge.offences(A), [source, arp]);
    assert_eq!(bridge.new_offences(), [(A, source), (A, arp)]);
    // Neither the same again nor another of the kind.
    go(&mut bridge, &plain(MAC_B, OTHER), A, 0);
    go(&mut bridge, &arp_from(MAC_A, MAC_A, [10, 0, 0, 12]), A, 0);
    assert_eq!(bridge.new_offences(), []);
    assert_eq!(bridge.offences(A), [source, arp]);
    // Drops that are no forgery are not kept.
    go(&mut bridge, &plain(MAC_A, MAC_A), A, 0);
    assert_eq!((bridge.offences(A).len(), bridge.offences(B).len()), (2, 0));
    // Another guest's MAC.
    go(&mut bridge, &plain(MAC_A, MAC_A2), B, 0);
    let taken = forged(DropReason::ForgedSource, Claim::Mac(MAC_A2), Some(A));
    assert_eq!(bridge.new_offences(), [(B, taken)]);
    // The next guest of the port begins anew.
    bridge.remove(A);
    bridge.add(A, &guest(&[MAC_A], &[])).unwrap();
    assert_eq!(bridge.offences(A), []);
    go(&mut bridge, &plain(MAC_B, OTHER), A, 0);
    assert_eq!(bridge.new_offences().len(), 1);
}
