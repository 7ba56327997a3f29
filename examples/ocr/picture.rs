//! Pictures: brought to the device, cut into lines, and drawn on.

use crate::boxes::Corners;
use crate::reader::Line;
use anyhow::{Context, Result};
use font8x8::{BASIC_FONTS, LATIN_FONTS, UnicodeFonts};
use image::{Rgb, RgbImage, imageops};
use imageproc::drawing::{draw_filled_rect_mut, draw_hollow_polygon_mut};
use imageproc::geometric_transformations::{Border, Interpolation, Projection, warp_into};
use imageproc::point::Point;
use imageproc::rect::Rect;
use marquetry::{DType, Device, Tensor};
use std::path::Path;

const INK: Rgb<u8> = Rgb([200, 30, 30]);
const PAPER: Rgb<u8> = Rgb([255, 255, 255]);
/// The side of a letter, in pixels.
const LETTER: u32 = 8;

pub fn load(path: &Path) -> Result<RgbImage> {
    let picture = image::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(picture.into_rgb8())
}

/// Brings a picture to the device in the form that the networks take: `[1, 3, height, width]`, blue first, from -1 to
/// 1.
pub fn to_tensor(picture: &RgbImage, device: &Device) -> marquetry::Result<Tensor> {
    let bytes: Vec<u8> = picture.pixels().flat_map(|&Rgb([red, green, blue])| [blue, green, red]).collect();
    let shape = (picture.height() as usize, picture.width() as usize, 3);
    let pixels = Tensor::from_vec(bytes, shape, device)?.permute([2, 0, 1])?.unsqueeze(0)?;
    pixels.to_dtype(DType::F32)?.affine(2.0 / 255.0, -1.0)
}

/// Returns the content of a box, upright. A box that is much higher than wide is a line that runs downwards.
pub fn cut(picture: &RgbImage, corners: &Corners) -> Option<RgbImage> {
    let distance = |a: Point<f32>, b: Point<f32>| (a.x - b.x).hypot(a.y - b.y);
    let [a, b, c, d] = *corners;
    let width = distance(a, b).max(distance(c, d)).floor();
    let height = distance(a, d).max(distance(b, c)).floor();
    let upright = [(0.0, 0.0), (width, 0.0), (width, height), (0.0, height)];
    let projection = Projection::from_control_points(corners.map(|corner| (corner.x, corner.y)), upright)?;
    let mut line = RgbImage::new(width as u32, height as u32);
    warp_into(picture, projection, Interpolation::Bicubic, Border::Replicate, &mut line);
    Some(if height >= 1.5 * width { imageops::rotate270(&line) } else { line })
}

/// Returns the picture with the boxes and their texts.
pub fn annotated(picture: &RgbImage, lines: &[Line]) -> RgbImage {
    let mut picture = picture.clone();
    for line in lines {
        draw_hollow_polygon_mut(&mut picture, &line.corners, INK);
        let top = line.corners.iter().fold(f32::INFINITY, |top, corner| top.min(corner.y));
        write(&mut picture, &line.text, line.corners[0].x as u32, (top as u32).saturating_sub(LETTER + 1));
    }
    picture
}

/// Writes a text. Characters that the font lacks become boxes.
fn write(picture: &mut RgbImage, text: &str, x: u32, y: u32) {
    let width = (text.chars().count() as u32 * LETTER).max(1);
    draw_filled_rect_mut(picture, Rect::at(x as i32, y as i32).of_size(width, LETTER), PAPER);
    for (character, left) in text.chars().zip((x..).step_by(LETTER as usize)) {
        let glyph =
            BASIC_FONTS.get(character).or_else(|| LATIN_FONTS.get(character)).unwrap_or([0x7e; LETTER as usize]);
        for (row, bits) in (y..).zip(glyph) {
            for column in (0..LETTER).filter(|column| bits >> column & 1 == 1) {
                if let Some(pixel) = picture.get_pixel_mut_checked(left + column, row) {
                    *pixel = INK;
                }
            }
        }
    }
}
