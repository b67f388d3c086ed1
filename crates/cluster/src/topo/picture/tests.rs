//! Checks the layout of the picture.

use std::sync::Once;

use plotters::style::{FontStyle, IntoFont, register_font};
use spark_ccl_console::plot::DEJAVU_SANS;
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

/// A pair without RDMA devices, whose machine has a long name.
fn without_rdma() -> Vec<Host> {
    let mut hosts = testing::hosts(&testing::pair());
    for host in &mut hosts {
        host.rdma.clear();
        host.system.product = Some("A_Workstation_With_More_Options_Than_Others_Revision_B".into());
    }
    hosts
}

/// A pair with long names and addresses, whose MTUs differ.
fn with_long_texts() -> Vec<Host> {
    let mut hosts = testing::hosts(&testing::pair());
    hosts[1].netdev_mut("enp1s0f0np0").mtu = 1500;
    for (number, host) in hosts.iter_mut().enumerate() {
        host.name = format!("spark-in-the-laboratory-of-physics-{number}.cluster.example.org");
        let ports = host.rdma.iter_mut().flat_map(|device| &mut device.ports);
        for gid in ports.flat_map(|port| &mut port.gids) {
            gid.address = "fd12:3456:789a:bcde:1234:5678:9abc:def0".parse().unwrap();
            gid.prefix = Some(64);
        }
    }
    hosts
}

/// A host alone, whose name is wider than its boxes.
fn alone() -> Vec<Host> {
    let mut host = testing::spark("spark-1", 1).host();
    host.name = "spark-".to_owned() + &"of-the-laboratory-of-physics-".repeat(3) + "1";
    vec![host]
}

fn pictures() -> Vec<(&'static str, String)> {
    let recorded = |hosts: &[Recorded]| picture(hosts);
    vec![
        ("pair", recorded(&testing::pair())),
        ("ring", recorded(&testing::ring())),
        ("switch", recorded(&testing::switch())),
        ("server", recorded(&[testing::nvlink_server("h200")])),
        ("without RDMA", draw(&Cluster::of(&without_rdma()))),
        ("one host", draw(&Cluster::of(&alone()))),
        ("long texts", draw(&Cluster::of(&with_long_texts()))),
    ]
}

fn attribute<'a>(tag: &'a str, name: &str) -> &'a str {
    let (_, rest) = tag.split_once(&format!(" {name}=\"")).unwrap();
    rest.split('"').next().unwrap()
}

fn number(tag: &str, name: &str) -> f64 {
    attribute(tag, name).parse().unwrap()
}

/// The rectangles that have texts, as left, top, right and bottom edge.
fn rectangles(svg: &str) -> Vec<[f64; 4]> {
    let tags = svg
        .split("<rect ")
        .skip(1)
        .map(|rest| rest.split('>').next().unwrap());
    let tags = tags.filter(|tag| {
        ["host", "gpu", "on", "off", "switch"].contains(&tag.split('"').nth(1).unwrap())
    });
    let edges = |tag: &str| {
        let tag = &format!(" {tag}");
        let [x, y, width, height] = ["x", "y", "width", "height"].map(|name| number(tag, name));
        [x, y, x + width, y + height]
    };
    tags.map(edges).collect()
}

/// The width at which a text of a class is drawn.
fn drawn_width(class: &str, text: &str) -> f64 {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        let registered = register_font("DejaVu Sans", FontStyle::Normal, DEJAVU_SANS);
        assert!(registered.is_ok(), "the font does not parse");
    });
    let (height, is_bold) = match class {
        "title" => (22.0, true),
        "name" => (16.0, true),
        "head" | "speed" | "beside" => (12.0, true),
        "tag" => (12.0, false),
        _ => (11.0, false),
    };
    // The crate's sizes are those of whole lines; bold letters are up to 15 % wider.
    let font = ("DejaVu Sans", height * 1.164).into_font();
    f64::from(font.box_size(text).unwrap().0) * if is_bold { 1.12 } else { 1.0 }
}

/// Each text, with its left, top, right and bottom edge.
fn texts(svg: &str) -> Vec<(&str, [f64; 4])> {
    let texts = svg
        .split("<text ")
        .skip(1)
        .map(|rest| rest.split_once('>').unwrap());
    texts
        .map(|(tag, rest)| {
            let tag = format!(" {tag}");
            let (class, text) = (attribute(&tag, "class"), rest.split('<').next().unwrap());
            let (x, y) = (number(&tag, "x"), number(&tag, "y"));
            let width = drawn_width(class, text);
            let is_left = ["title", "name", "small", "beside"].contains(&class);
            let left = if is_left { x } else { x - width / 2.0 };
            (text, [left, y - 9.0, left + width, y + 2.0])
        })
        .collect()
}

#[test]
fn texts_are_within_their_boxes_and_apart() {
    for (name, svg) in pictures() {
        let rectangles = rectangles(&svg);
        let texts = texts(&svg);
        let page = [number(&svg, "width"), number(&svg, "height")];
        for (index, (text, [left, top, right, bottom])) in texts.iter().enumerate() {
            let is_inside = *left >= 0.0 && *right <= page[0] && *bottom <= page[1];
            assert!(is_inside, "{name}: '{text}' leaves the page");
            let (x, y) = (f64::midpoint(*left, *right), f64::midpoint(*top, *bottom));
            // Of a host and a box in it, both.
            for [l, t, r, b] in &rectangles {
                let is_its = (*l..*r).contains(&x) && (*t..*b).contains(&y);
                let fits = l <= left && right <= r && t <= top && bottom <= b;
                assert!(!is_its || fits, "{name}: '{text}' leaves its box");
            }
            for (other, [l, t, r, b]) in &texts[..index] {
                let apart = right <= l || r <= left || bottom <= t || b <= top;
                assert!(apart, "{name}: '{text}' is upon '{other}'");
            }
        }
    }
}

#[test]
fn no_text_is_wider_than_it_is_taken_for() {
    for (name, svg) in pictures() {
        for (text, [left, _, right, _]) in texts(&svg) {
            // Titles, which are larger, are measured alike.
            assert!(right - left <= width(text, 22.0, true), "{name}: {text}");
        }
    }
    for text in [
        "10.0.0.1/24",
        "enP2p1s0f0np0",
        "fd12:3456:789a:bcde::1/64",
        "x4 32 GT/s",
    ] {
        assert!(
            drawn_width("mid", text) <= width(text, 11.0, false),
            "{text}"
        );
        assert!(
            drawn_width("head", text) <= width(text, 12.0, true),
            "{text}"
        );
    }
}

#[test]
fn a_cable_has_its_speed_and_mtu() {
    let expected = [
        ("pair", 1, "200 Gbit/s · MTU 9000"),
        ("ring", 3, "200 Gbit/s · MTU 9000"),
        ("switch", 4, "200 Gbit/s · MTU 9000"),
        ("without RDMA", 2, "200 Gbit/s · MTU 9000"),
        ("long texts", 1, "200 Gbit/s · MTU 1500 and 9000"),
    ];
    let pictures = pictures();
    for (name, times, label) in expected {
        let (_, svg) = pictures.iter().find(|(known, _)| *known == name).unwrap();
        assert_eq!(svg.matches(&format!(">{label}<")).count(), times, "{name}");
    }
}

#[test]
fn a_title_without_room_is_their_number() {
    let title = |hosts: &[Host]| {
        let svg = draw(&Cluster::of(hosts));
        let (_, text) = svg.split_once("class=\"title\"")?;
        let (_, text) = text.split_once('>')?;
        text.split('<').next().map(str::to_owned)
    };
    let mut four = testing::hosts(&testing::switch());
    for host in &mut four {
        host.name
            .push_str("-of-the-laboratory-of-physics.cluster.example.org");
    }
    assert_eq!(title(&four).as_deref(), Some("4 hosts"));
    // The line below it says the same.
    assert_eq!(title(&alone()), None);
}

#[test]
fn the_document_names_its_hosts() {
    let svg = picture(&testing::ring());
    assert!(
        svg.contains("<title>spark-1, spark-2, spark-3</title>"),
        "{svg}"
    );
}
