//! Checks the layout of plots, and their form as PNG and SVG.

use std::collections::HashMap;

use plotters::style::IntoFont;

use super::*;
use crate::error::Failure;

const TYPES: [&str; 12] = [
    "float", "double", "half", "bfloat16", "int8", "uint8", "int32", "uint32", "int64", "uint64",
    "f8e4m3", "f8e5m2",
];

/// Two lines for each type: the second one has twice the times of the first.
fn chart(types: &[&str], sizes: &[u64]) -> Chart {
    let point = |size: u64, factor: f64| Point {
        x: size as f64,
        time_us: factor * (1.0 + size as f64 / 1e3),
        bus_bw: size as f64 / (1.0 + size as f64 / 1e3) / factor / 1e3,
    };
    let mut series = Vec::new();
    for (color, dtype) in types.iter().enumerate() {
        for (mode, dashed, factor) in [("out of place", false, 1.0), ("in place", true, 2.0)] {
            let look = match types.len() {
                1 => Look::alone(dashed),
                _ => Look { color, dashed },
            };
            for size in sizes {
                let name = format!("{dtype} sum, {mode}");
                add(&mut series, name, look, point(*size, factor));
            }
        }
    }
    Chart {
        title: "all_reduce, 2 ranks, host".into(),
        across: Unit::Bytes,
        series,
    }
}

fn powers() -> Vec<u64> {
    (3..=30).map(|power| 1 << power).collect()
}

/// One curve and many, one size, equal steps and small steps.
fn charts() -> Vec<(&'static str, Chart)> {
    let near: Vec<_> = (0..6).map(|step| (1 << 20) + (step << 16)).collect();
    let odd: Vec<_> = (0..9).map(|step| 1_000_003 + step * 4).collect();
    let equal: Vec<_> = (1..=16).map(|step| step << 20).collect();
    vec![
        ("one type", chart(&["float"], &powers())),
        ("all types", chart(&TYPES, &powers())),
        ("one size", chart(&["float"], &[1 << 20])),
        ("one byte", chart(&["int8"], &[1])),
        ("equal steps", chart(&["float"], &equal)),
        ("small steps", chart(&["float"], &near)),
        ("few bytes apart", chart(&["int8"], &odd)),
        ("nothing", chart(&[], &[])),
    ]
}

/// The elements of a kind: their attributes, and what is between their tags.
fn elements<'a>(svg: &'a str, kind: &str) -> Vec<(HashMap<&'a str, &'a str>, &'a str)> {
    let element = |text: &'a str| {
        let (tag, rest) = text.split_once('>').unwrap();
        let attributes = tag.split("\" ").filter_map(|one| one.split_once("=\""));
        let attributes =
            attributes.map(|(name, value)| (name.trim(), value.trim_end_matches(['"', '/'])));
        (attributes.collect(), rest.split('<').next().unwrap())
    };
    svg.split(&format!("<{kind} "))
        .skip(1)
        .map(element)
        .collect()
}

fn number(attributes: &HashMap<&str, &str>, name: &str) -> f64 {
    attributes[name].parse().unwrap()
}

/// Each text, with its left, top, right and bottom edge.
fn boxes(svg: &str) -> Vec<(&str, [f64; 4])> {
    let boxed = |(attributes, text): (HashMap<&str, &str>, _)| {
        let size = number(&attributes, "font-size");
        // The crate's sizes are those of whole lines.
        let font = (draw::FAMILIES, size * 1.24).into_font();
        let width = f64::from(font.box_size(text).unwrap().0);
        let left = match attributes["text-anchor"] {
            "start" => 0.0,
            "middle" => -width / 2.0,
            _ => -width,
        };
        let below = match attributes["dy"] {
            "0.76em" => 0.76,
            "0.5ex" => 0.25,
            _ => -0.25,
        };
        let (x, y) = (number(&attributes, "x"), number(&attributes, "y"));
        let (top, bottom) = ((below - 0.7) * size, (below + 0.2) * size);
        let edges = if attributes.contains_key("transform") {
            [x + top, y + left, x + bottom, y + left + width]
        } else {
            [x + left, y + top, x + left + width, y + bottom]
        };
        (text, edges)
    };
    elements(svg, "text").into_iter().map(boxed).collect()
}

#[test]
fn texts_are_on_the_page_and_apart() {
    for (name, chart) in charts() {
        let svg = draw::svg(&chart).unwrap();
        let page = elements(&svg, "svg")[0].0.clone();
        let boxes = boxes(&svg);
        assert!(name == "nothing" || boxes.len() > 10, "{name}");
        for (index, (text, [left, top, right, bottom])) in boxes.iter().enumerate() {
            assert!(
                *left >= 0.0
                    && *top >= 0.0
                    && *right <= number(&page, "width")
                    && *bottom <= number(&page, "height"),
                "{name}: '{text}' leaves the page"
            );
            for (other, [l, t, r, b]) in &boxes[..index] {
                assert!(
                    right <= l || r <= left || bottom <= t || b <= top,
                    "{name}: '{text}' is upon '{other}'"
                );
            }
        }
    }
}

#[test]
fn labels_are_readable_and_differ() {
    for (name, expected) in [
        (
            "one type",
            &["16 B", "1 KiB", "1 MiB", "1 GiB", "10 µs", "1 ms", "0.1"][..],
        ),
        ("one size", &["512 KiB", "1 MiB", "2 MiB"]),
        ("one byte", &["1 B", "2 B"]),
        (
            "equal steps",
            &["1 MiB", "2 MiB", "4 MiB", "8 MiB", "16 MiB"],
        ),
        ("small steps", &["1 MiB", "1088 KiB", "1344 KiB"]),
        ("few bytes apart", &["1000004 B", "1000032 B"]),
    ] {
        let (_, chart) = charts()
            .into_iter()
            .find(|(known, _)| *known == name)
            .unwrap();
        let svg = draw::svg(&chart).unwrap();
        let labels: Vec<_> = elements(&svg, "text")
            .into_iter()
            .map(|(_, text)| text)
            .collect();
        for label in expected {
            assert!(labels.contains(label), "{name}: {label} of {labels:?}");
        }
        let mut sizes: Vec<_> = labels.iter().filter(|text| text.ends_with('B')).collect();
        let all = sizes.len();
        sizes.sort();
        sizes.dedup();
        // Both panels have each label.
        assert_eq!(sizes.len() * 2, all, "{name}: {labels:?}");
    }
}

#[test]
fn svg_names_everything() {
    let mut chart = chart(&["int8"], &powers());
    chart.title = "1 < 2 & 3 > 2".into();
    let text = draw::svg(&chart).unwrap();
    for part in [
        ">time<",
        ">bus bandwidth (GB/s)<",
        ">size<",
        ">int8 sum, out of place<",
        ">int8 sum, in place<",
        ">1 &lt; 2 &amp; 3 &gt; 2<",
    ] {
        assert!(text.contains(part), "{part}");
    }
}

/// The pixels of a PNG, and its width.
fn decoded(bytes: &[u8]) -> (Vec<u8>, usize) {
    let mut reader = png::Decoder::new(std::io::Cursor::new(bytes))
        .read_info()
        .unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let width = reader.next_frame(&mut pixels).unwrap().width as usize;
    (pixels, width)
}

#[test]
fn png_shows_what_svg_says() {
    let chart = chart(&["int8"], &powers());
    let svg = draw::svg(&chart).unwrap();
    let (pixels, width) = decoded(&draw::png(&chart).unwrap());
    let at = |x: f64, y: f64| {
        let index = ((y * 2.0) as usize * width + (x * 2.0) as usize) * 3;
        &pixels[index..index + 3]
    };
    // Every text contains black, and greys at the edges of its letters.
    for (text, [left, top, right, bottom]) in boxes(&svg) {
        let steps = |from: f64, to: f64| {
            (0..=80).map(move |step| from + (to - from) * f64::from(step) / 80.0)
        };
        let positions = steps(left, right).flat_map(|x| steps(top, bottom).map(move |y| (x, y)));
        let reds: Vec<_> = positions.map(|(x, y)| at(x, y)[0]).collect();
        assert!(reds.iter().any(|red| *red < 70), "{text}");
        assert!(reds.iter().any(|red| (90..190).contains(red)), "{text}");
    }
    // The points of the curves are where they are in the SVG.
    let marks = elements(&svg, "circle");
    assert_eq!(marks.len(), 2 + 4 * powers().len());
    for (mark, _) in marks {
        let (x, y) = (number(&mark, "cx"), number(&mark, "cy"));
        let [red, green, blue, ..] = at(x, y) else {
            unreachable!()
        };
        assert_eq!(
            format!("#{red:02X}{green:02X}{blue:02X}"),
            mark["fill"],
            "{x} {y}"
        );
    }
}

/// The ends of the segments of the first line, in both panels.
fn segments(svg: &str) -> Vec<[(f64, f64); 2]> {
    let mut found = Vec::new();
    let lines = elements(svg, "polyline").into_iter();
    // Before its curves comes its sample, in the legend.
    for (line, _) in lines
        .filter(|(line, _)| line["stroke"] == "#0072B2")
        .skip(1)
    {
        let point = |pair: &str| {
            let (x, y) = pair.split_once(',').unwrap();
            (x.parse().unwrap(), y.parse().unwrap())
        };
        let points: Vec<(f64, f64)> = line["points"].split_whitespace().map(point).collect();
        found.extend(points.windows(2).map(|pair| [pair[0], pair[1]]));
    }
    found
}

#[test]
fn a_line_is_as_wide_in_a_png_as_in_svg_also_on_slopes() {
    let mut chart = chart(&["int8"], &powers());
    // Without marks, and solid.
    chart.series.truncate(1);
    let points = &mut chart.series[0].points;
    points.extend(
        (0..60)
            .map(|_| points[points.len() - 1])
            .collect::<Vec<_>>(),
    );
    let (pixels, width) = decoded(&draw::png(&chart).unwrap());
    let mut seen = [0; 2];
    for [(ax, ay), (bx, by)] in segments(&draw::svg(&chart).unwrap()) {
        let length = (bx - ax).hypot(by - ay);
        // Where all points are at the same place.
        if length < 1.0 {
            continue;
        }
        let (middle, across) = (
            (f64::midpoint(ax, bx), f64::midpoint(ay, by)),
            ((by - ay) / length, (ax - bx) / length),
        );
        // What is not red is the line, or a grid's bright line.
        let cover = (-60..=60).map(|step| {
            let [x, y] = [
                middle.0 + across.0 * f64::from(step) / 10.0,
                middle.1 + across.1 * f64::from(step) / 10.0,
            ];
            let index = ((y * 2.0) as usize * width + (x * 2.0) as usize) * 3;
            f64::from(255 - pixels[index]) / 255.0 / 10.0
        });
        let wide: f64 = cover.sum();
        assert!((1.6..2.8).contains(&wide), "{wide} at {middle:?}");
        seen[usize::from((by - ay).abs() > 5.0)] += 1;
    }
    assert!(seen[0] > 5 && seen[1] > 5, "{seen:?}");
}

#[test]
fn what_has_no_logarithm_is_left_out() {
    let mut chart = chart(&["int8"], &powers());
    for (line, bus_bw) in chart.series.iter_mut().zip([0.0, f64::NAN]) {
        for point in &mut line.points {
            point.bus_bw = bus_bw;
        }
    }
    let svg = draw::svg(&chart).unwrap();
    assert!(svg.contains(">time<") && !svg.contains("bandwidth"));
}

#[test]
fn endings() {
    assert_eq!(Kind::of(Path::new("a.SVG")).unwrap(), Kind::Svg);
    assert_eq!(Kind::of(Path::new("a.png")).unwrap(), Kind::Png);
    assert_eq!(Kind::of(Path::new("a.pdf")).unwrap_err().exit_code(), 6);
    assert_eq!(Kind::of(Path::new("a")).unwrap_err().exit_code(), 6);
}
