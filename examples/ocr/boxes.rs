//! Turns each pixel's probability to be text into rectangles around lines, as Differentiable Binarization does.

use image::{GrayImage, Luma};
use imageproc::geometry::convex_hull;
use imageproc::point::Point;
use imageproc::region_labelling::{Connectivity, connected_components};
use std::collections::BTreeMap;

/// Pixels with a higher probability are text.
const PIXEL_THRESHOLD: f32 = 0.3;
/// Boxes whose pixels have a higher mean are lines.
const BOX_THRESHOLD: f32 = 0.5;
/// The network learned lines that were shrunk. They grow again by this part of area / perimeter.
const GROWTH: f32 = 1.6;
/// The shortest side of a box in pixels, before and after it grows.
const SHORTEST: [f32; 2] = [3.0, 5.0];
/// Boxes whose tops differ by fewer pixels are in the same line.
const SAME_LINE: f32 = 10.0;

/// The corners of a box, clockwise from the top left.
pub type Corners = [Point<f32>; 4];

/// A map of probabilities, row by row.
pub struct ProbabilityMap<'a> {
    pub probabilities: &'a [f32],
    pub width: usize,
    pub height: usize,
}

/// Returns the boxes of a map, in a picture of this width and height, from top to bottom and from left to right.
pub fn find(map: &ProbabilityMap, width: u32, height: u32) -> Vec<Corners> {
    let fit = |value: f32, from: usize, to: u32| {
        (value / from as f32 * to as f32).round().clamp(0.0, to.saturating_sub(1) as f32)
    };
    let mut boxes: Vec<Corners> = Vec::new();
    for points in components(&mask(map)) {
        let Some(rectangle) = Rectangle::around(&points).filter(|rectangle| rectangle.shortest() >= SHORTEST[0]) else {
            continue;
        };
        let grown = rectangle.grown();
        if rectangle.mean(map) < BOX_THRESHOLD || grown.shortest() < SHORTEST[1] {
            continue;
        }
        let corners = grown.corners().map(|p| Point::new(fit(p.x, map.width, width), fit(p.y, map.height, height)));
        boxes.push(corners);
    }
    in_reading_order(boxes)
}

/// Returns the pixels of text, and the pixels right of and below them.
fn mask(map: &ProbabilityMap) -> GrayImage {
    let is_text = |x: u32, y: u32| map.probabilities[y as usize * map.width + x as usize] > PIXEL_THRESHOLD;
    GrayImage::from_fn(map.width as u32, map.height as u32, |x, y| {
        let near = (y.saturating_sub(1)..=y).any(|y| (x.saturating_sub(1)..=x).any(|x| is_text(x, y)));
        Luma([u8::from(near)])
    })
}

/// Returns groups of connected pixels.
fn components(mask: &GrayImage) -> impl Iterator<Item = Vec<Point<i32>>> {
    let mut components: BTreeMap<u32, Vec<Point<i32>>> = BTreeMap::new();
    for (x, y, &Luma([label])) in connected_components(mask, Connectivity::Eight, Luma([0])).enumerate_pixels() {
        if label != 0 {
            components.entry(label).or_default().push(Point::new(x as i32, y as i32));
        }
    }
    components.into_values()
}

/// A rectangle at any angle.
struct Rectangle {
    center: Point<f32>,
    /// The direction of its first side, of length 1.
    axis: Point<f32>,
    /// Half its length along that direction and across.
    half: [f32; 2],
}

impl Rectangle {
    /// Returns the smallest rectangle around points. One of its sides lies along the convex hull.
    fn around(points: &[Point<i32>]) -> Option<Self> {
        let hull: Vec<Point<f32>> = convex_hull(points).iter().map(|p| Point::new(p.x as f32, p.y as f32)).collect();
        let next = hull.iter().cycle().skip(1);
        let candidates = hull.iter().zip(next).filter(|(a, b)| a != b).map(|(a, b)| Rectangle::along(*b - *a, &hull));
        candidates.min_by(|a, b| a.area().total_cmp(&b.area()))
    }

    /// Returns the rectangle around points with a side of this direction.
    fn along(direction: Point<f32>, points: &[Point<f32>]) -> Self {
        let length = direction.x.hypot(direction.y);
        let axis = Point::new(direction.x / length, direction.y / length);
        let extent = |axis: Point<f32>| {
            let places = points.iter().map(|p| dot(*p, axis));
            places.fold((f32::INFINITY, f32::NEG_INFINITY), |(low, high), place| (low.min(place), high.max(place)))
        };
        let (along, across) = (extent(axis), extent(normal(axis)));
        let middle = |(low, high): (f32, f32)| (low + high) / 2.0;
        let half = [along, across].map(|(low, high)| (high - low) / 2.0);
        Rectangle { center: at(axis, middle(along), middle(across)), axis, half }
    }

    fn area(&self) -> f32 {
        4.0 * self.half[0] * self.half[1]
    }

    fn shortest(&self) -> f32 {
        2.0 * self.half[0].min(self.half[1])
    }

    fn grown(&self) -> Self {
        let perimeter = 4.0 * (self.half[0] + self.half[1]);
        let distance = self.area() * GROWTH / perimeter;
        Rectangle { half: self.half.map(|half| half + distance), ..*self }
    }

    /// Returns the mean of a map inside of the rectangle.
    fn mean(&self, map: &ProbabilityMap) -> f32 {
        let (mut sum, mut count) = (0.0, 0);
        let reach = self.half[0].hypot(self.half[1]);
        let range = |center: f32, length: usize| {
            (center - reach).max(0.0) as usize..length.min((center + reach).max(0.0) as usize + 1)
        };
        for y in range(self.center.y, map.height) {
            for x in range(self.center.x, map.width) {
                let from_center = Point::new(x as f32, y as f32) - self.center;
                let inside = dot(from_center, self.axis).abs() <= self.half[0]
                    && dot(from_center, normal(self.axis)).abs() <= self.half[1];
                if inside {
                    sum += map.probabilities[y * map.width + x];
                    count += 1;
                }
            }
        }
        sum / count.max(1) as f32
    }

    /// Returns the corners, clockwise from the top left. Of the two leftmost corners, the upper one comes first.
    fn corners(&self) -> Corners {
        let [a, b] = self.half;
        let mut corners = [(-a, -b), (a, -b), (a, b), (-a, b)].map(|(x, y)| self.center + at(self.axis, x, y));
        corners.sort_by(|p, q| p.x.total_cmp(&q.x));
        corners[..2].sort_by(|p, q| p.y.total_cmp(&q.y));
        corners[2..].sort_by(|p, q| p.y.total_cmp(&q.y));
        let [top_left, bottom_left, top_right, bottom_right] = corners;
        [top_left, top_right, bottom_right, bottom_left]
    }
}

fn dot(a: Point<f32>, b: Point<f32>) -> f32 {
    a.x * b.x + a.y * b.y
}

fn normal(axis: Point<f32>) -> Point<f32> {
    Point::new(-axis.y, axis.x)
}

/// Returns the point with these coordinates along a direction and across.
fn at(axis: Point<f32>, along: f32, across: f32) -> Point<f32> {
    Point::new(along * axis.x - across * axis.y, along * axis.y + across * axis.x)
}

fn in_reading_order(mut boxes: Vec<Corners>) -> Vec<Corners> {
    boxes.sort_by(|a, b| a[0].y.total_cmp(&b[0].y).then(a[0].x.total_cmp(&b[0].x)));
    for last in 1..boxes.len() {
        for place in (1..=last).rev() {
            let (left, right) = (boxes[place - 1][0], boxes[place][0]);
            if (left.y - right.y).abs() >= SAME_LINE || left.x <= right.x {
                break;
            }
            boxes.swap(place - 1, place);
        }
    }
    boxes
}
