//! Draws hosts and what joins them.

use spark_ccl_topology::cages::CageEnd;
use spark_ccl_topology::cluster::{Cable, Shape, leading};
use spark_ccl_topology::{Cluster, Gpu, Host, Reach};

use super::layout::{CAGE, COLORS, Card, GPUS, HEAD, Layout, MARGIN, PAD, function};
use super::svg::{Point, Rect, Svg};
use crate::notation::size::human;

const STYLE: &str = "
.paper { fill: #ffffff }
text { font-family: 'DejaVu Sans', Verdana, Helvetica, Arial, sans-serif; fill: #222222; font-size: 12px }
.title { font-size: 22px; font-weight: bold }
.name { font-size: 16px; font-weight: bold }
.small { font-size: 11px; fill: #555555 }
.mid { text-anchor: middle; font-size: 11px }
.head { text-anchor: middle; font-size: 12px; font-weight: bold }
.dim { text-anchor: middle; font-size: 11px; fill: #999999 }
.tag { text-anchor: middle; font-size: 12px; paint-order: stroke; stroke: #ffffff; stroke-width: 5px }
.host { fill: #f7f8fa; stroke: #9aa3ad; stroke-width: 1.2 }
.gpu { fill: #e4f1da; stroke: #6b9a3c }
.on { fill: #e3eefa; stroke: #4f81b5 }
.off { fill: #f3f3f3; stroke: #bbbbbb; stroke-dasharray: 4 3 }
.switch { fill: #ececf3; stroke: #70708c; stroke-width: 1.2 }
.cable { fill: none; stroke: #d4d7dc; stroke-width: 20; stroke-linecap: round }
.rail0 { fill: none; stroke: #0072b2; stroke-width: 2.6 }
.rail1 { fill: none; stroke: #d55e00; stroke-width: 2.6 }
.rail2 { fill: none; stroke: #009e73; stroke-width: 2.6 }
.rail3 { fill: none; stroke: #cc79a7; stroke-width: 2.6 }
.bar0 { fill: #0072b2 }
.bar1 { fill: #d55e00 }
.bar2 { fill: #009e73 }
.bar3 { fill: #cc79a7 }
";

/// How far the subnets are beside a curve that crosses the space between the rows.
const TAG_BESIDE: f64 = 36.0;
/// How much further an arc reaches for each pixel that it begins further outside.
const ARC_BESIDE: f64 = 1.3;

/// The picture as SVG.
pub(super) fn draw(cluster: &Cluster<'_>) -> String {
    let layout = Layout::of(cluster);
    let mut svg = Svg::default();
    title(&mut svg, cluster);
    if cluster.shape == Shape::Switch {
        switch(&mut svg, cluster, &layout);
    } else {
        for cable in &cluster.cables {
            draw_cable(&mut svg, cluster, &layout, cable);
        }
    }
    for card in &layout.cards {
        draw_card(&mut svg, card);
    }
    legend(&mut svg, cluster, &layout);
    svg.finish(layout.width, layout.height, STYLE)
}

fn title(svg: &mut Svg, cluster: &Cluster<'_>) {
    let names: Vec<_> = cluster
        .hosts
        .iter()
        .map(|host| host.name.as_str())
        .collect();
    svg.text("title", (MARGIN, 40.0), &names.join(", "));
    let count = cluster.hosts.len();
    let line = match cluster.shape {
        Shape::Single => "One host".to_owned(),
        Shape::Switch => format!("{count} hosts at {}", cluster.shape),
        _ => format!("{count} hosts: {}", cluster.shape),
    };
    svg.text("small", (MARGIN, 60.0), &line);
}

/// The rails of one cable within the cable, and their subnets beside it.
fn draw_cable(svg: &mut Svg, cluster: &Cluster<'_>, layout: &Layout<'_>, cable: &Cable) {
    let [a, b] = [&cable.ends[0], &cable.ends[1]].map(|end| layout.plug(end));
    let reach = reach(a, b);
    svg.curve("cable", bent(a, reach), bent(b, reach));
    for &index in &cable.rails {
        let ends = &cluster.rails[index].ends;
        let (from, mut to) = (layout.rail(&ends[0]), layout.rail(&ends[1]));
        let beside = from.0.0 - a.0.0;
        let mut reach = reach;
        if is_arc(a, b) {
            // Mirrored at the other end, the rails of an arc lie within each other.
            to.0.0 = b.0.0 - beside;
            reach += beside * (b.0.0 - a.0.0).signum() * -ARC_BESIDE;
        }
        let class = format!("rail{}", layout.color(&ends[0]));
        svg.curve(&class, bent(from, reach), bent(to, reach));
    }
    let mut middle = halfway(bent(a, reach), bent(b, reach));
    if !is_arc(a, b) {
        // To the side of the curve, which goes down to the left or to the right.
        middle.0 -= TAG_BESIDE * (b.0.0 - a.0.0).signum();
    }
    let lines = cable.rails.iter().map(|&index| subnet(cluster, index));
    for (place, line) in lines.enumerate() {
        let y = middle.1 + 26.0 + 16.0 * place as f64;
        svg.text("tag", (middle.0, y), &line);
    }
}

/// The switch between the rows, with a line for each rail of each host.
fn switch(svg: &mut Svg, cluster: &Cluster<'_>, layout: &Layout<'_>) {
    let area = Rect {
        x: MARGIN,
        y: layout.middle - 22.0,
        width: layout.width - 2.0 * MARGIN,
        height: 44.0,
    };
    for cable in cluster.cables.iter().flat_map(|cable| &cable.ends) {
        let (from, way) = layout.plug(cable);
        let to = (from.0, layout.middle);
        svg.curve("cable", (from, way), (to, -way));
    }
    let mut subnets: Vec<String> = Vec::new();
    for (index, rail) in cluster.rails.iter().enumerate() {
        let subnet = subnet(cluster, index);
        if !subnets.contains(&subnet) {
            subnets.push(subnet);
        }
        for end in &rail.ends {
            let (from, way) = layout.rail(end);
            let class = format!("rail{}", layout.color(end));
            svg.curve(&class, (from, way), ((from.0, layout.middle), -way));
        }
    }
    svg.rect("switch", area, 8.0);
    let line = format!("switch: {}", subnets.join(", "));
    svg.text("head", (area.center(), layout.middle + 5.0), &line);
}

fn draw_card(svg: &mut Svg, card: &Card<'_>) {
    let Card { host, area, .. } = card;
    svg.rect("host", *area, 12.0);
    let (x, top) = (area.x + PAD, card.top());
    svg.text("name", (x, top + 26.0), &host.name);
    let product = host.system.product.as_deref().unwrap_or("unknown machine");
    let memory = human(host.memory.total);
    svg.text(
        "small",
        (x, top + 44.0),
        &format!("{} · {memory}", product.replace('_', " ")),
    );
    svg.text("small", (x, top + 60.0), &processors(host));
    if card.cages.is_empty() {
        for netdev in leading(host) {
            let ((x, y), way) = card.edge(card.interface(&netdev.name));
            svg.text("head", (x, y - 8.0 * way + 4.0), &netdev.name);
        }
    }
    gpus(svg, host, *area, top + HEAD);
    for (cage, place) in &card.cages {
        for (index, end) in cage.ends.iter().enumerate() {
            draw_function(svg, card, *end, (function(*place, index), index));
        }
        let gbits = cage
            .gbits()
            .map_or_else(|| "no link".to_owned(), |gbits| format!("{gbits} Gbit/s"));
        let y = if card.upper {
            place.bottom() - 8.0
        } else {
            place.y + 16.0
        };
        svg.text(
            "head",
            (place.center(), y),
            &format!("{} · {gbits}", cage.name),
        );
    }
}

fn processors(host: &Host) -> String {
    let classes = host.cpus.iter();
    let mut words: Vec<_> = classes
        .map(|class| format!("{} × {}", class.count, class.name))
        .collect();
    let joined = |gpu: &Gpu| {
        let peers = gpu.cuda.as_ref().map(|device| &device.peers);
        peers.is_some_and(|all| all.iter().all(|peer| peer.reach == Reach::NvLink))
    };
    if host.gpus.len() > 1 && host.gpus.iter().all(joined) {
        words.push("NVLink between all GPUs".to_owned());
    }
    words.join(", ")
}

fn gpus(svg: &mut Svg, host: &Host, area: Rect, y: f64) {
    let count = host.gpus.len() as f64;
    let width = (area.width - 2.0 * PAD - (count - 1.0).max(0.0) * 6.0) / count.max(1.0);
    for (index, gpu) in host.gpus.iter().enumerate() {
        let place = Rect {
            x: area.x + PAD + index as f64 * (width + 6.0),
            y,
            width,
            height: GPUS - 12.0,
        };
        svg.rect("gpu", place, 6.0);
        let name = gpu_name(gpu);
        svg.text("head", (place.center(), y + 15.0), &name);
        svg.text("mid", (place.center(), y + 28.0), &gpu.bus_id);
    }
}

fn gpu_name(gpu: &Gpu) -> String {
    let name = gpu.name.as_deref().unwrap_or("GPU");
    name.strip_prefix("NVIDIA ").unwrap_or(name).to_owned()
}

/// A function of the network card: device, interface, address, packets, PCIe.
fn draw_function(svg: &mut Svg, card: &Card<'_>, end: CageEnd<'_>, at: (Rect, usize)) {
    let (place, index) = at;
    let active = end.is_active();
    let top = if card.upper { place.y } else { place.y + 24.0 };
    let area = Rect {
        x: place.x + 3.0,
        y: top + 2.0,
        width: place.width - 6.0,
        height: CAGE - 30.0,
    };
    svg.rect(if active { "on" } else { "off" }, area, 6.0);
    if active {
        let y = if card.upper {
            area.bottom() - 5.0
        } else {
            area.y
        };
        let bar = Rect {
            y,
            height: 5.0,
            ..area
        };
        svg.rect(&format!("bar{}", index % COLORS), bar, 2.0);
    }
    let port = card.host.described(end.device, end.port);
    let address = port.preferred().filter(|_| active);
    let pcie = end.pcie(card.host);
    let lines = [
        Some(end.device.name.clone()),
        end.port.netdev.clone(),
        address.map(ToString::to_string),
        end.netdev.map(|netdev| format!("MTU {}", netdev.mtu)),
        pcie.map(|link| format!("x{} {} GT/s", link.width, link.speed)),
    ];
    for (line, text) in lines.into_iter().flatten().enumerate() {
        let class = match (active, line) {
            (false, _) => "dim",
            (true, 0) => "head",
            (true, _) => "mid",
        };
        svg.text(
            class,
            (area.center(), top + 19.0 + 16.0 * line as f64),
            &text,
        );
    }
}

fn legend(svg: &mut Svg, cluster: &Cluster<'_>, layout: &Layout<'_>) {
    let y = layout.height - 22.0;
    let line = if cluster.rails.is_empty() {
        "Boxes at the edge: the cages of network cards, and the functions that lead there. Dashed: \
         no link."
    } else {
        "Coloured lines: rails, one for each function of a cage. Grey: the cable that carries \
         them. Dashed: no link."
    };
    svg.text("small", (MARGIN, y), line);
}

/// The subnet of a rail.
fn subnet(cluster: &Cluster<'_>, rail: usize) -> String {
    let gid = &cluster.rails[rail].ends[0].gid;
    let prefix = gid
        .prefix
        .unwrap_or(if gid.ip().is_ipv4() { 32 } else { 128 });
    match gid.ip() {
        std::net::IpAddr::V4(ip) => {
            let mask = u32::MAX
                .checked_shl(32 - u32::from(prefix.min(32)))
                .unwrap_or(0);
            format!("{}/{prefix}", std::net::Ipv4Addr::from(ip.to_bits() & mask))
        }
        std::net::IpAddr::V6(ip) => {
            let mask = u128::MAX
                .checked_shl(128 - u32::from(prefix.min(128)))
                .unwrap_or(0);
            format!("{}/{prefix}", std::net::Ipv6Addr::from(ip.to_bits() & mask))
        }
    }
}

/// Whether two ends are in one row, so that the curve between them goes out and back.
fn is_arc(a: (Point, f64), b: (Point, f64)) -> bool {
    (a.1 - b.1).abs() < 0.5
}

/// How far curves bend: across between the rows, or out and back within a row, further the longer
/// they are.
fn reach(a: (Point, f64), b: (Point, f64)) -> f64 {
    let (((ax, ay), _), ((bx, by), _)) = (a, b);
    if is_arc(a, b) {
        60.0 + (ax - bx).abs() * 0.12
    } else {
        (ay - by).abs() * 0.55
    }
}

fn bent((point, way): (Point, f64), reach: f64) -> (Point, f64) {
    (point, way * reach)
}

/// The middle of a curve.
fn halfway(a: (Point, f64), b: (Point, f64)) -> Point {
    let (((ax, ay), out), ((bx, by), back)) = (a, b);
    let y = (ay + 3.0 * (ay + out) + 3.0 * (by + back) + by) / 8.0;
    (f64::midpoint(ax, bx), y)
}

#[cfg(test)]
mod tests {
    use spark_ccl_topology::testing::{self, Recorded};

    use super::*;

    fn picture(recorded: &[Recorded]) -> String {
        draw(&Cluster::of(&testing::hosts(recorded)))
    }

    fn count(svg: &str, class: &str) -> usize {
        svg.matches(&format!("class=\"{class}\"")).count()
    }

    #[test]
    fn a_ring_has_a_cable_between_any_two_hosts() {
        let svg = picture(&testing::ring());
        assert_eq!((count(&svg, "host"), count(&svg, "cable")), (3, 3));
        assert_eq!((count(&svg, "rail0"), count(&svg, "rail1")), (3, 3));
        assert!(svg.contains("3 hosts: a ring without a switch"), "{svg}");
        assert!(
            ["10.0.0.0/24", "10.0.5.0/24"]
                .iter()
                .all(|net| svg.contains(net))
        );
    }

    #[test]
    fn a_switch_has_a_line_to_each_function() {
        let svg = picture(&testing::switch());
        assert_eq!(count(&svg, "switch"), 1);
        // A line for each end of the rails between any two.
        assert_eq!((count(&svg, "rail0"), count(&svg, "rail1")), (12, 12));
    }

    #[test]
    fn a_server_shows_its_gpus_and_cards() {
        let svg = picture(&[testing::nvlink_server("h200")]);
        assert_eq!((count(&svg, "gpu"), count(&svg, "on")), (8, 8));
    }
}
