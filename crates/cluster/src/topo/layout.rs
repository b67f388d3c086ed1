//! Where hosts, cages and cables are in the picture.
//!
//! Hosts stand in two rows, in the order of a ring: the upper row from the left, the lower one back
//! from the right. Cages face the space between the rows, in which the cables are.

use spark_ccl_topology::cages::Cage;
use spark_ccl_topology::cluster::{Cable, CableEnd, RailEnd, leading};
use spark_ccl_topology::{Cluster, Host, cages};

use super::curve::{CurveEnd, halfway, is_arc, leaving, reach};
use super::labels;
use super::svg::{Rect, width as text_width};

/// The colours of rails.
pub(super) const COLORS: usize = 4;
/// The least width of a function of a network card, and of a host.
const FUNCTION: f64 = 132.0;
const LEAST: f64 = 280.0;
pub(super) const PAD: f64 = 16.0;
pub(super) const MARGIN: f64 = 40.0;
/// The space between hosts of a row, and between the rows.
const BESIDE: f64 = 56.0;
const BETWEEN: f64 = 220.0;
/// The distance between rails of a cable, and the least between interfaces without RDMA devices.
const RAILS: f64 = 9.0;
const INTERFACE: f64 = 80.0;
/// The distance of the middle of a cable from the first line of its label, and of its lines.
pub(super) const LABEL: f64 = 26.0;
pub(super) const LINE: f64 = 16.0;
/// The heights of letters: of a host's name, of the heads of boxes, and of all others.
const NAME: f64 = 16.0;
const HEADS: f64 = 12.0;
const OTHERS: f64 = 11.0;
/// The space around the text of a box.
const AROUND: f64 = 22.0;
/// The heights of a host's name and properties, of its GPUs, and of its cages.
pub(super) const HEAD: f64 = 74.0;
pub(super) const GPUS: f64 = 46.0;
pub(super) const CAGE: f64 = 124.0;
/// The height of the title above everything, and of the legend below.
pub(super) const TITLE: f64 = 84.0;
pub(super) const LEGEND: f64 = 56.0;

/// The picture.
pub(super) struct Layout<'a> {
    pub(super) cards: Vec<Card<'a>>,
    pub(super) width: f64,
    pub(super) height: f64,
    /// The middle of the space for cables.
    pub(super) middle: f64,
}

/// A host's place.
pub(super) struct Card<'a> {
    pub(super) host: &'a Host,
    pub(super) area: Rect,
    /// Whether it is in the upper row, so that its cages are at its bottom.
    pub(super) upper: bool,
    pub(super) cages: Vec<(Cage<'a>, Rect)>,
    /// The interfaces without RDMA devices that have cables, and their distance.
    interfaces: Vec<&'a str>,
    beside: f64,
}

impl<'a> Layout<'a> {
    pub(super) fn of(cluster: &Cluster<'a>) -> Self {
        let count = cluster.hosts.len();
        // Two hosts stand side by side, three as a triangle.
        let above = if count <= 2 { count } else { count / 2 };
        let mut cards: Vec<_> = cluster.hosts.iter().map(Card::new).collect();
        let rows: [Vec<usize>; 2] = [(0..above).collect(), (above..count).rev().collect()];
        let widths = rows.each_ref().map(|row| width(&cards, row));
        let width = widths[0].max(widths[1]).max(640.0) + 2.0 * MARGIN;
        let below = height(&cards, &rows[0]) + TITLE;
        for (lower, row) in rows.iter().enumerate() {
            let mut x = (width - widths[lower]) / 2.0;
            for &index in row {
                let card = &mut cards[index];
                card.upper = lower == 0;
                card.area.x = x;
                card.area.y = if card.upper {
                    below - card.area.height
                } else {
                    below + BETWEEN
                };
                x += card.area.width + BESIDE;
            }
        }
        if count == 2 {
            // So that no cable crosses another one.
            cards[1].interfaces.reverse();
        }
        sort_cages(cluster, &mut cards);
        let lower = height(&cards, &rows[1]);
        let mut layout = Self {
            cards,
            width,
            height: below + BETWEEN + lower + LEGEND,
            middle: below + BETWEEN / 2.0,
        };
        if count <= 2 {
            let ends = cluster
                .cables
                .iter()
                .map(|cable| layout.label_bottom(cluster, cable));
            layout.height = ends.fold(below, f64::max) + LEGEND;
        }
        layout
    }

    /// Where the label of a cable within a row ends.
    fn label_bottom(&self, cluster: &Cluster<'_>, cable: &Cable) -> f64 {
        let [a, b] = [&cable.ends[0], &cable.ends[1]].map(|end| self.plug(end));
        let reach = reach(a, b, self.arcs_inside(cluster, cable));
        let middle = halfway(leaving(a, reach), leaving(b, reach)).1;
        middle + LABEL + LINE * cable.rails.len() as f64
    }

    /// How many cables of the same two hosts lie within the arc of this one.
    pub(super) fn arcs_inside(&self, cluster: &Cluster<'_>, cable: &Cable) -> usize {
        let hosts = |cable: &Cable| [cable.ends[0].host, cable.ends[1].host];
        let length = |cable: &Cable| {
            let [a, b] = [&cable.ends[0], &cable.ends[1]].map(|end| self.plug(end));
            is_arc(a, b).then_some((a.0.0 - b.0.0).abs())
        };
        let others = cluster
            .cables
            .iter()
            .filter(|other| hosts(other) == hosts(cable));
        others.filter(|other| length(other) < length(cable)).count()
    }

    /// Where a cable is plugged in, and the direction in which it leaves: 1 is down.
    pub(super) fn plug(&self, end: &CableEnd) -> CurveEnd {
        let card = &self.cards[end.host];
        let found = card.cages.iter().find(|(cage, _)| {
            let is_card =
                |(card, name): &(String, String)| *card == cage.card && *name == cage.name;
            end.cage.as_ref().is_some_and(is_card)
        });
        let x = found.map_or_else(|| card.interface(&end.name), |(_, area)| area.center());
        card.edge(x)
    }

    /// The colour of a rail: that of the function where it begins.
    pub(super) fn color(&self, end: &RailEnd) -> usize {
        let cages = self.cards[end.host].cages.iter();
        let place = |(cage, _): &(Cage<'_>, Rect)| {
            let mut ends = cage.ends.iter();
            ends.position(|one| one.device.name == end.device)
        };
        cages.clone().find_map(place).unwrap_or(0) % COLORS
    }

    /// Where a rail ends, beside the middle of its cable by its place among the functions of the
    /// cage.
    pub(super) fn rail(&self, end: &RailEnd) -> CurveEnd {
        let card = &self.cards[end.host];
        let of_cage = |(cage, area): &(Cage<'_>, Rect)| {
            let mut ends = cage.ends.iter();
            let place = ends.position(|one| one.device.name == end.device)?;
            Some(area.center() + beside(place, cage.ends.len()))
        };
        let found = card.cages.iter().find_map(of_cage);
        card.edge(found.unwrap_or_else(|| card.interface(&end.netdev)))
    }
}

/// The distance of a line from the middle of its cable.
fn beside(place: usize, count: usize) -> f64 {
    (place as f64 - count.saturating_sub(1) as f64 / 2.0) * RAILS
}

impl<'a> Card<'a> {
    /// Without a place yet.
    fn new(host: &'a Host) -> Self {
        let cages = cages(host);
        let interfaces: Vec<_> = leading(host).iter().map(|one| one.name.as_str()).collect();
        let names = interfaces
            .iter()
            .map(|name| text_width(name, HEADS, true) + AROUND);
        let beside = names.fold(INTERFACE, f64::max);
        let cage_widths = cages.iter().map(|cage| cage_width(host, cage));
        let places: Vec<_> = cage_widths.collect();
        let gaps = cages.len().saturating_sub(1) as f64 * PAD;
        let inside = [
            places.iter().sum::<f64>() + gaps,
            if cages.is_empty() {
                beside * interfaces.len() as f64
            } else {
                0.0
            },
            text_width(&host.name, NAME, true),
            text_width(&labels::machine(host), OTHERS, false),
            text_width(&labels::processors(host), OTHERS, false),
            gpus_width(host),
        ];
        let width = inside.into_iter().fold(LEAST - 2.0 * PAD, f64::max) + 2.0 * PAD;
        let gpus = if host.gpus.is_empty() { 0.0 } else { GPUS };
        let cage = if cages.is_empty() { 0.0 } else { CAGE };
        let empty = Rect {
            x: 0.0,
            y: 0.0,
            width,
            height: HEAD + gpus + cage + PAD,
        };
        Self {
            host,
            area: empty,
            upper: true,
            cages: cages
                .into_iter()
                .zip(places)
                .map(|(cage, width)| (cage, Rect { width, ..empty }))
                .collect(),
            interfaces,
            beside,
        }
    }

    /// Gives the cages their places, in their order.
    fn place_cages(&mut self) {
        let all: f64 = self.cages.iter().map(|(_, area)| area.width).sum();
        let gaps = self.cages.len().saturating_sub(1) as f64 * PAD;
        let mut x = self.area.center() - f64::midpoint(all, gaps);
        let y = if self.upper {
            self.area.bottom() - CAGE
        } else {
            self.area.y
        };
        for (_, area) in &mut self.cages {
            *area = Rect {
                x,
                y,
                height: CAGE,
                ..*area
            };
            x += area.width + PAD;
        }
    }

    /// The place of the name, the properties and the GPUs.
    pub(super) fn top(&self) -> f64 {
        if self.upper || self.cages.is_empty() {
            self.area.y
        } else {
            self.area.y + CAGE
        }
    }

    /// Where the cable of an interface without an RDMA device is.
    pub(super) fn interface(&self, name: &str) -> f64 {
        let place = self.interfaces.iter().position(|one| *one == name);
        let middle = self.interfaces.len().saturating_sub(1) as f64 / 2.0;
        self.area.center() + (place.unwrap_or(0) as f64 - middle) * self.beside
    }

    /// The point of the edge that faces the cables, and the direction away from it.
    pub(super) fn edge(&self, x: f64) -> CurveEnd {
        if self.upper {
            ((x, self.area.bottom()), 1.0)
        } else {
            ((x, self.area.y), -1.0)
        }
    }
}

/// The place of one of the functions of a cage.
pub(super) fn function((cage, area): &(Cage<'_>, Rect), place: usize) -> Rect {
    let width = area.width / cage.ends.len() as f64;
    Rect {
        x: area.x + place as f64 * width,
        width,
        ..*area
    }
}

/// A card is as wide as its functions, whose texts are within their boxes.
fn cage_width(host: &Host, cage: &Cage<'_>) -> f64 {
    let lines = cage
        .ends
        .iter()
        .flat_map(|end| labels::function(host, *end));
    let widths = lines.map(|line| text_width(&line, HEADS, true) + AROUND);
    cage.ends.len() as f64 * widths.fold(FUNCTION, f64::max)
}

/// The least width of all GPUs beside each other.
fn gpus_width(host: &Host) -> f64 {
    let name = |gpu| text_width(&labels::gpu(gpu), HEADS, true);
    let widths = host
        .gpus
        .iter()
        .map(|gpu| name(gpu).max(text_width(&gpu.bus_id, OTHERS, false)));
    (widths.fold(0.0, f64::max) + AROUND) * host.gpus.len() as f64
}

fn width(cards: &[Card<'_>], row: &[usize]) -> f64 {
    let cards = row.iter().map(|&index| cards[index].area.width);
    cards.sum::<f64>() + row.len().saturating_sub(1) as f64 * BESIDE
}

fn height(cards: &[Card<'_>], row: &[usize]) -> f64 {
    let heights = row.iter().map(|&index| cards[index].area.height);
    heights.fold(0.0, f64::max)
}

/// Orders the cages of each host by where their cables lead, so that cables cross as little as
/// possible.
fn sort_cages(cluster: &Cluster<'_>, cards: &mut [Card<'_>]) {
    let centers: Vec<_> = cards.iter().map(|card| card.area.center()).collect();
    for (host, card) in cards.iter_mut().enumerate() {
        let target = |cage: &Cage<'_>| {
            let cables = cluster
                .cables
                .iter()
                .filter_map(|cable| cable.seen_from(host));
            let own = cables.filter(|[own, _]| {
                let key = own.cage.as_ref();
                key.is_some_and(|(card, name)| *card == cage.card && *name == cage.name)
            });
            let targets: Vec<_> = own.map(|[_, peer]| centers[peer.host]).collect();
            // A cage without a cable stays where its host is.
            let count = targets.len().max(1) as f64;
            let sum: f64 = targets.iter().sum();
            if targets.is_empty() {
                centers[host]
            } else {
                sum / count
            }
        };
        card.cages
            .sort_by(|(a, _), (b, _)| target(a).total_cmp(&target(b)));
        card.place_cages();
    }
}
