//! Selects the connections that make room for others: fairly between listeners, and between the
//! hosts that connect to one.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};

use socket2::SockAddr;

/// The origin of a connection, as far as a stranger cannot choose it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Origin {
    /// The listener's index.
    listener: usize,
    /// The other host; `None` for a Unix socket. Of an IPv6 address only the network, in which a
    /// host may have any address.
    host: Option<IpAddr>,
}

impl Origin {
    pub(super) fn new(listener: usize, from: &SockAddr) -> Self {
        let network = |ip: IpAddr| match ip.to_canonical() {
            IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
            ip @ IpAddr::V4(_) => ip,
        };
        let host = from.as_socket().map(|address| network(address.ip()));
        Origin { listener, host }
    }
}

/// Removes up to `count` connections from `pending`, which has the oldest first. Connections that
/// must stay have no origin. Each one taken is the oldest from the host with the most others, at
/// the listener with the most.
pub(super) fn take<T>(
    pending: &mut VecDeque<T>,
    count: usize,
    origin: impl Fn(&T) -> Option<Origin>,
) -> VecDeque<T> {
    let mut quotas = quotas(pending.iter().filter_map(&origin), count);
    let (gone, left) = std::mem::take(pending).into_iter().partition(|one| {
        let quota = origin(one).and_then(|origin| quotas.get_mut(&origin));
        quota.is_some_and(|quota| {
            let goes = *quota > 0;
            *quota -= usize::from(goes);
            goes
        })
    });
    *pending = left;
    gone
}

/// How many of `count` connections each origin gives up.
fn quotas(origins: impl Iterator<Item = Origin>, count: usize) -> HashMap<Origin, usize> {
    let (mut at_listeners, mut left) = (HashMap::<usize, usize>::new(), HashMap::new());
    for origin in origins {
        *at_listeners.entry(origin.listener).or_default() += 1;
        *left.entry(origin).or_insert(0usize) += 1;
    }
    let mut quotas = HashMap::new();
    for _ in 0..count {
        let crowd =
            |(origin, left): &(&Origin, &mut usize)| (at_listeners[&origin.listener], **left);
        let Some((&origin, left)) = left
            .iter_mut()
            .filter(|(_, left)| **left > 0)
            .max_by_key(crowd)
        else {
            break;
        };
        *left -= 1;
        if let Some(at_listener) = at_listeners.get_mut(&origin.listener) {
            *at_listener -= 1;
        }
        *quotas.entry(origin).or_default() += 1;
    }
    quotas
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(listener: usize, host: u8) -> Origin {
        let host = (host > 0).then(|| IpAddr::from([10, 0, 0, host]));
        Origin { listener, host }
    }

    #[test]
    fn the_most_crowded_listener_and_host_make_room() {
        let many = |origin, count| std::iter::repeat_n(origin, count);
        let all = many(at(0, 0), 2)
            .chain(many(at(1, 7), 9))
            .chain(many(at(1, 8), 3))
            .chain(many(at(2, 7), 10));
        // Listener 1 goes from 12 down to the 10 of listener 2, then both in turn; host 8 is never
        // the fuller one.
        let quotas = quotas(all, 6);
        assert_eq!(quotas.values().sum::<usize>(), 6);
        assert_eq!(quotas[&at(1, 7)], 4);
        assert_eq!(quotas[&at(2, 7)], 2);
    }

    #[test]
    fn the_oldest_of_an_origin_go_and_the_others_stay_in_order() {
        let mut pending: VecDeque<_> = (0..9).collect();
        // 0, 3 and 6 must stay. Of 2, 4 and 8, and of 1, 5 and 7, the oldest one goes.
        let origin = |number: &i32| (number % 3 != 0).then(|| at(0, 1 + (number % 2) as u8));
        let gone = take(&mut pending, 2, origin);
        assert_eq!(gone, [1, 2]);
        assert_eq!(pending, [0, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn no_more_go_than_there_are() {
        let quotas = quotas([at(0, 0), at(1, 1)].into_iter(), 9);
        assert_eq!(quotas, HashMap::from([(at(0, 0), 1), (at(1, 1), 1)]));
    }

    #[test]
    fn addresses_of_one_network_are_one_host() {
        let of = |text: &str| {
            let address: std::net::SocketAddr = text.parse().unwrap();
            Origin::new(0, &address.into())
        };
        assert_eq!(of("[2001:db8::1]:1"), of("[2001:db8::2:9]:4"));
        assert_ne!(of("[2001:db8::1]:1"), of("[2001:db8:0:1::1]:1"));
        assert_eq!(of("[::ffff:10.0.0.7]:1"), of("10.0.0.7:3"));
        assert_ne!(of("10.0.0.8:1"), of("10.0.0.7:1"));
    }
}
