//! Checks the layout of plots, and their form as PNG and SVG.

use super::shape::{Anchor, Position, Shape};
use super::*;
use crate::report::Key;

const TYPES: [&str; 12] = [
    "float", "double", "half", "bfloat16", "int8", "uint8", "int32", "uint32", "int64", "uint64",
    "f8e4m3", "f8e5m2",
];
const LONG: &str = "a type whose name is longer than a line of the legend can be, \
    and so has to be cut somewhere, wherever that may be";

fn rows(types: &[&'static str], sizes: &[u64]) -> Vec<Row> {
    let measure = |size: u64, factor: f64| Measure {
        time_us: factor * (1.0 + size as f64 / 1e3),
        cpu_us: 0.0,
        algorithm_bw: 1.0,
        bus_bw: size as f64 / (1.0 + size as f64 / 1e3) / factor / 1e3,
        wrong: None,
        per_iteration: None,
    };
    let row = |dtype, size| Row {
        key: Key {
            size,
            count: size,
            dtype,
            op: "sum",
            root: -1,
        },
        out_of_place: measure(size, 1.0),
        in_place: measure(size, 2.0),
        timestamp: String::new(),
    };
    let sizes = |dtype| sizes.iter().map(move |size| row(dtype, *size));
    types.iter().flat_map(|dtype| sizes(*dtype)).collect()
}

fn powers() -> Vec<u64> {
    (3..=30).map(|power| 1 << power).collect()
}

fn chart(rows: &[Row]) -> Chart {
    Chart::of_rows("all_reduce, 2 ranks, host".into(), rows)
}

/// One curve and many, one size, equal steps and small steps, and long names.
fn charts() -> Vec<(&'static str, Chart)> {
    let long = Chart {
        title: LONG.repeat(3),
        ..chart(&rows(&[LONG, "float"], &powers()))
    };
    let near: Vec<_> = (0..6).map(|step| (1 << 20) + (step << 16)).collect();
    let odd: Vec<_> = (0..9).map(|step| 1_000_003 + step * 4).collect();
    vec![
        ("one type", chart(&rows(&["float"], &powers()))),
        ("all types", chart(&rows(&TYPES, &powers()))),
        ("one size", chart(&rows(&["float"], &[1 << 20]))),
        ("one byte", chart(&rows(&["int8"], &[1]))),
        (
            "equal steps",
            chart(&rows(
                &["float"],
                &(1..=16).map(|step| step << 20).collect::<Vec<_>>(),
            )),
        ),
        ("small steps", chart(&rows(&["float"], &near))),
        ("few bytes apart", chart(&rows(&["int8"], &odd))),
        ("long names", long),
        ("nothing", chart(&[])),
    ]
}

/// The left, top, right and bottom edges of each text.
fn boxes(page: &Page, font: &Font) -> Vec<(String, [f32; 4])> {
    let boxed = |shape: &Shape| {
        let Shape::Text(text) = shape else {
            return None;
        };
        let width = font.width(&text.line, text.size);
        let before = match text.anchor {
            Anchor::Start => 0.0,
            Anchor::Middle => width / 2.0,
            Anchor::End => width,
        };
        let (x, y) = text.position;
        let (above, below) = (text.size * 0.76, text.size * 0.24);
        let edges = if text.upright {
            [x - above, y - width + before, x + below, y + before]
        } else {
            [x - before, y - above, x - before + width, y + below]
        };
        Some((text.line.clone(), edges))
    };
    page.shapes.iter().filter_map(boxed).collect()
}

#[test]
fn texts_are_on_the_page_and_apart() {
    let font = Font::embedded().unwrap();
    for (name, chart) in charts() {
        let page = Page::new(&chart, &font);
        let boxes = boxes(&page, &font);
        assert!(name == "nothing" || boxes.len() > 10, "{name}");
        for (number, (text, [left, top, right, bottom])) in boxes.iter().enumerate() {
            assert!(
                *left >= 0.0 && *top >= 0.0 && *right <= page.size.0 && *bottom <= page.size.1,
                "{name}: '{text}' leaves the page"
            );
            for (other, [l, t, r, b]) in &boxes[..number] {
                assert!(
                    right <= l || r <= left || bottom <= t || b <= top,
                    "{name}: '{text}' is upon '{other}'"
                );
            }
        }
    }
}

#[test]
fn nothing_is_drawn_on_the_legend() {
    let font = Font::embedded().unwrap();
    for (name, chart) in charts() {
        let page = Page::new(&chart, &font);
        let names: Vec<_> = chart.series.iter().map(|line| &line.name[..5]).collect();
        let boxes = boxes(&page, &font);
        let legend = boxes
            .iter()
            .filter(|(text, _)| names.iter().any(|name| text.starts_with(name)));
        let legend: Vec<_> = legend.map(|(_, edges)| edges).collect();
        assert!(legend.len() >= chart.series.len(), "{name}");
        let positions = page.shapes.iter().flat_map(|shape| match shape {
            Shape::Line { positions, .. } => &positions[..],
            Shape::Area { corners, .. } => corners,
            Shape::Text(_) => &[],
        });
        for &(x, y) in positions {
            let on = |edges: &&[f32; 4]| {
                (edges[0]..edges[2]).contains(&x) && (edges[1]..edges[3]).contains(&y)
            };
            assert_eq!(legend.iter().copied().find(on), None, "{name}: {x}, {y}");
        }
    }
}

#[test]
fn labels_are_readable_and_differ() {
    let font = Font::embedded().unwrap();
    let labels = |name| {
        let (_, chart) = charts()
            .into_iter()
            .find(|(known, _)| *known == name)
            .unwrap();
        let texts = boxes(&Page::new(&chart, &font), &font);
        texts.into_iter().map(|(text, _)| text).collect::<Vec<_>>()
    };
    for (name, expected) in [
        (
            "one type",
            &["16 B", "1 KiB", "1 MiB", "1 GiB", "1 µs", "1 ms", "0.1"][..],
        ),
        ("one size", &["512 KiB", "1 MiB", "2 MiB"]),
        ("one byte", &["1 B", "2 B"]),
        (
            "equal steps",
            &["1 MiB", "2 MiB", "4 MiB", "8 MiB", "16 MiB"],
        ),
        ("small steps", &["1024 KiB", "1088 KiB", "1344 KiB"]),
        ("few bytes apart", &["1000004 B", "1000032 B"]),
    ] {
        let labels = labels(name);
        for label in expected {
            assert!(
                labels.iter().any(|text| text == label),
                "{name}: {label} of {labels:?}"
            );
        }
        let sizes = labels.iter().filter(|text| text.ends_with('B'));
        let mut sizes: Vec<_> = sizes.collect();
        let all = sizes.len();
        sizes.sort();
        sizes.dedup();
        // Both panels have each label.
        assert_eq!(sizes.len() * 2, all, "{name}: {labels:?}");
    }
}

#[test]
fn svg_names_everything() {
    let font = Font::embedded().unwrap();
    let mut chart = chart(&rows(&["int8"], &powers()));
    chart.title = "1 < 2 & 3 > 2".into();
    let text = svg::text(&Page::new(&chart, &font));
    for part in [
        ">time<",
        ">bus bandwidth (GB/s)<",
        ">size<",
        ">int8 sum, out of place<",
        ">int8 sum, in place<",
        ">1 &lt; 2 &amp; 3 &gt; 2<",
        "stroke-dasharray",
    ] {
        assert!(text.contains(part), "{part}");
    }
    assert_eq!(
        text.matches("<text").count(),
        text.matches("</text>").count()
    );
}

#[test]
fn png_shows_what_the_page_says() {
    let font = Font::embedded().unwrap();
    let page = Page::new(&chart(&rows(&["int8"], &powers())), &font);
    let bytes = png::bytes(&page, &font).unwrap();
    let picture = tiny_skia::Pixmap::decode_png(&bytes).unwrap();
    let at = |(x, y): Position| {
        let pixel = picture.pixel((x * 2.0) as u32, (y * 2.0) as u32).unwrap();
        [pixel.red(), pixel.green(), pixel.blue()]
    };
    // Every text contains black, and greys at the edges of its letters, because it is drawn from
    // outlines, not bitmaps.
    for (text, [left, top, right, bottom]) in boxes(&page, &font) {
        let positions =
            (0..200).flat_map(|x| (0..40).map(move |y| (x as f32 / 200.0, y as f32 / 40.0)));
        let positions =
            positions.map(|(x, y)| (left + x * (right - left), top + y * (bottom - top)));
        let pixels: Vec<_> = positions.map(at).collect();
        assert!(pixels.iter().any(|pixel| pixel[0] < 70), "{text}");
        assert!(
            pixels.iter().any(|pixel| (90..190).contains(&pixel[0])),
            "{text}"
        );
    }
    // The points of the first curve are at their positions on the page.
    let curve = page.shapes.iter().find_map(|shape| match shape {
        Shape::Line { positions, .. } if positions.len() == powers().len() => Some(positions),
        _ => None,
    });
    for position in curve.unwrap() {
        assert_eq!(at(*position), [0, 114, 178], "{position:?}");
    }
}

#[test]
fn what_has_no_logarithm_is_left_out() {
    let font = Font::embedded().unwrap();
    let mut rows = rows(&["int8"], &powers());
    for row in &mut rows {
        row.out_of_place.bus_bw = 0.0;
        row.in_place.bus_bw = f64::NAN;
    }
    let texts = boxes(&Page::new(&chart(&rows), &font), &font);
    assert!(texts.iter().any(|(text, _)| text == "time"));
    assert!(texts.iter().all(|(text, _)| !text.contains("bandwidth")));
}

#[test]
fn unknown_letters_are_question_marks() {
    let font = Font::embedded().unwrap();
    let glyph = |text| font.glyphs(text, 10.0).next();
    assert_eq!(glyph("字"), glyph("?"));
    assert_ne!(glyph("µ"), glyph("?"));
}

#[test]
fn endings() {
    assert_eq!(Kind::of(Path::new("a.SVG")).unwrap(), Kind::Svg);
    assert_eq!(Kind::of(Path::new("a.png")).unwrap(), Kind::Png);
    assert_eq!(Kind::of(Path::new("a.pdf")).unwrap_err().exit_code(), 6);
    assert_eq!(Kind::of(Path::new("a")).unwrap_err().exit_code(), 6);
}
