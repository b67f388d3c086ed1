//! Draws hosts and what joins them.

#[cfg(test)]
mod tests;

use spark_ccl_topology::cages::CageEnd;
use spark_ccl_topology::cluster::{Cable, Shape, leading};
use spark_ccl_topology::{Cluster, Host};

use super::curve::{halfway, is_arc, leaving, reach};
use super::labels;
use super::layout::{CAGE, COLORS, Card, GPUS, HEAD, LABEL, LINE, Layout, MARGIN, PAD, function};
use super::svg::{Rect, Svg, width};

const STYLE: &str = concat!("\n", include_str!("style.css"));

/// How much further an arc reaches for each pixel that it begins further outside.
const ARC_BESIDE: f64 = 1.3;

/// The picture as SVG.
pub(super) fn draw(cluster: &Cluster<'_>) -> String {
    let layout = Layout::of(cluster);
    let mut svg = Svg::default();
    title(&mut svg, cluster, layout.width);
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
    svg.finish(&names(cluster), layout.width, layout.height, STYLE)
}

fn names(cluster: &Cluster<'_>) -> String {
    let names = cluster.hosts.iter().map(|host| host.name.as_str());
    names.collect::<Vec<_>>().join(", ")
}

/// The names, where there is room for them: each host has its own once more.
fn title(svg: &mut Svg, cluster: &Cluster<'_>, room: f64) {
    let names = names(cluster);
    let count = cluster.hosts.len();
    if width(&names, 22.0, true) <= room - 2.0 * MARGIN {
        svg.text("title", (MARGIN, 40.0), &names);
    } else if count > 1 {
        svg.text("title", (MARGIN, 40.0), &format!("{count} hosts"));
    }
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
    let reach = reach(a, b, layout.arcs_inside(cluster, cable));
    svg.curve("cable", leaving(a, reach), leaving(b, reach));
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
        svg.curve(&class, leaving(from, reach), leaving(to, reach));
    }
    let speed = labels::cable(cluster, cable, &[&cable.ends[0], &cable.ends[1]]);
    let subnets = cable
        .rails
        .iter()
        .map(|&index| labels::subnet(cluster, index));
    let lines: Vec<_> = std::iter::once(speed).chain(subnets).collect();
    let mut middle = halfway(leaving(a, reach), leaving(b, reach));
    if !is_arc(a, b) {
        // To the side of the curve, which goes down to the left or to the right.
        let widths = lines.iter().map(|line| width(line, 12.0, true));
        middle.0 -= widths.fold(0.0, f64::max) / 2.0 * (b.0.0 - a.0.0).signum();
    }
    for (place, line) in lines.iter().enumerate() {
        let class = if place == 0 { "speed" } else { "tag" };
        let y = middle.1 + LABEL + LINE * place as f64;
        svg.text(class, (middle.0, y), line);
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
    let mut plugged = Vec::new();
    for cable in &cluster.cables {
        for end in cable.ends.iter().filter(|end| !plugged.contains(end)) {
            let (from, way) = layout.plug(end);
            svg.curve("cable", (from, way), ((from.0, layout.middle), -way));
            let at = (
                from.0 + PAD,
                from.1 + way * (layout.middle - from.1).abs() / 2.0,
            );
            svg.text("beside", at, &labels::cable(cluster, cable, &[end]));
        }
        plugged.extend(&cable.ends);
    }
    let mut subnets: Vec<String> = Vec::new();
    for (index, rail) in cluster.rails.iter().enumerate() {
        let subnet = labels::subnet(cluster, index);
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
    svg.text("small", (x, top + 44.0), &labels::machine(host));
    svg.text("small", (x, top + 60.0), &labels::processors(host));
    if card.cages.is_empty() {
        for netdev in leading(host) {
            let ((x, y), way) = card.edge(card.interface(&netdev.name));
            svg.text("head", (x, y - 8.0 * way + 4.0), &netdev.name);
        }
    }
    gpus(svg, host, *area, top + HEAD);
    for one in &card.cages {
        let (cage, place) = one;
        for (index, end) in cage.ends.iter().enumerate() {
            draw_function(svg, card, *end, (function(one, index), index));
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
        svg.text("head", (place.center(), y + 15.0), &labels::gpu(gpu));
        svg.text("mid", (place.center(), y + 28.0), &gpu.bus_id);
    }
}

/// A function of the network card.
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
    for (line, text) in labels::function(card.host, end).iter().enumerate() {
        let class = match (active, line) {
            (false, _) => "dim",
            (true, 0) => "head",
            (true, _) => "mid",
        };
        svg.text(
            class,
            (area.center(), top + 20.0 + LINE * line as f64),
            text,
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
