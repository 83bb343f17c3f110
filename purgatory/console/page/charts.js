// Areas over the last two minutes, on a canvas: one series, or several stacked.

export const WINDOW_S = 120;

export const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const grouped = new Intl.NumberFormat("en"), compact = new Intl.NumberFormat("en", { notation: "compact" });
export const number = (n) => (n >= 100 || Number.isInteger(n) ? grouped.format(Math.round(n)) : n.toFixed(1));

// Size the canvas to its box and the screen's density; drawing is then in CSS pixels.
export function fit(canvas) {
  const density = window.devicePixelRatio || 1, { width, height } = canvas.getBoundingClientRect();
  const [w, h] = [Math.round(width * density), Math.round(height * density)];
  if (canvas.width !== w || canvas.height !== h) [canvas.width, canvas.height] = [w, h];
  const pen = canvas.getContext("2d");
  pen.setTransform(density, 0, 0, density, 0, 0);
  pen.clearRect(0, 0, width, height);
  return [pen, width, height];
}

function niceCeiling(value) {
  if (value <= 4) return 4;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((step) => step * power).find((step) => step >= value * 1.04) ?? 10 * power;
}

// `points` are [t, [value of each series]]; `series` are {name, color}, drawn from the bottom up.
export class Chart {
  constructor(canvas) {
    this.canvas = canvas;
    this.hover = null;
    canvas.style.height = `${canvas.getAttribute("height")}px`;
    canvas.addEventListener("pointermove", (event) => { this.hover = event.offsetX; this.redraw(); });
    canvas.addEventListener("pointerleave", () => { this.hover = null; this.redraw(); });
  }

  draw(points, series, now) {
    [this.points, this.series, this.now] = [points, series, now];
    this.redraw();
  }

  redraw() {
    if (!this.points) return;
    const [pen, width, height] = fit(this.canvas), { points, series, now } = this;
    const left = 46, right = width - 4, top = 8, bottom = height - 20;
    const sums = points.map(([, values]) => values.reduce((a, b) => a + b, 0));
    const most = niceCeiling(Math.max(0, ...sums));
    const x = (t) => right - ((now - t) / WINDOW_S) * (right - left), y = (v) => bottom - (v / most) * (bottom - top);

    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    pen.lineWidth = 1;
    for (let step = 0; step <= 4; step += 2) {
      const value = (most * step) / 4, at = Math.round(y(value)) + 0.5;
      pen.strokeStyle = css("--line");
      pen.beginPath(); pen.moveTo(left, at); pen.lineTo(right, at); pen.stroke();
      pen.fillStyle = css("--soft"); pen.textAlign = "right";
      pen.fillText(value >= 1e4 ? compact.format(value) : number(value), left - 8, at);
    }
    pen.textBaseline = "alphabetic";
    const apart = right - left < 360 ? 60 : 30; // so that the labels do not overlap on a telephone
    for (let ago = 0; ago <= WINDOW_S; ago += apart) {
      pen.textAlign = ago === 0 ? "right" : ago === WINDOW_S ? "left" : "center";
      pen.fillText(ago === 0 ? "now" : `${ago} s ago`, x(now - ago), height - 4);
    }
    if (points.length < 2) return;

    pen.save();
    pen.beginPath(); pen.rect(left, 0, right - left, bottom + 1); pen.clip();
    let floor = points.map(() => 0);
    series.forEach(({ color }, index) => {
      const ceiling = floor.map((base, i) => base + points[i][1][index]);
      if (ceiling.some((value, i) => value !== floor[i]) || series.length === 1) {
        const trace = (line) => points.forEach(([t], i) => pen.lineTo(x(t), y(line[i])));
        pen.beginPath(); trace(ceiling);
        for (let i = points.length - 1; i >= 0; i--) pen.lineTo(x(points[i][0]), y(floor[i]));
        pen.closePath();
        pen.fillStyle = css(color);
        pen.globalAlpha = series.length === 1 ? 0.16 : 0.55;
        pen.fill();
        pen.globalAlpha = 1;
        pen.beginPath();
        points.forEach(([t], i) => (series.length === 1 || ceiling[i] > floor[i] ? pen.lineTo(x(t), y(ceiling[i])) : pen.moveTo(x(t), y(ceiling[i]))));
        pen.strokeStyle = css(color); pen.lineWidth = series.length === 1 ? 2 : 1.2; pen.lineJoin = "round";
        pen.stroke();
      }
      floor = ceiling;
    });
    pen.restore();
    if (this.hover !== null && this.hover > left) this.readOut(pen, x, left, right, top, bottom);
  }

  readOut(pen, x, left, right, top, bottom) {
    const nearest = this.points.reduce((a, b) => (Math.abs(x(b[0]) - this.hover) < Math.abs(x(a[0]) - this.hover) ? b : a));
    const at = x(nearest[0]);
    const lines = [`${Math.max(0, Math.round(this.now - nearest[0]))} s ago`,
      ...this.series.map(({ name }, i) => `${name} ${number(nearest[1][i])}`).filter((_, i) => this.series.length === 1 || nearest[1][i] > 0).reverse()];
    const wide = Math.max(...lines.map((line) => pen.measureText(line).width)) + 18, high = lines.length * 16 + 10;
    const box = at + wide + 10 > right ? at - wide - 8 : at + 8;
    pen.strokeStyle = css("--soft"); pen.lineWidth = 1;
    pen.beginPath(); pen.moveTo(at, top); pen.lineTo(at, bottom); pen.stroke();
    pen.fillStyle = css("--panel"); pen.strokeStyle = css("--line");
    pen.beginPath(); pen.roundRect(Math.max(left, box), top + 2, wide, high, 6); pen.fill(); pen.stroke();
    pen.textAlign = "left"; pen.textBaseline = "middle";
    lines.forEach((line, i) => { pen.fillStyle = css(i ? "--ink" : "--soft"); pen.fillText(line, Math.max(left, box) + 9, top + 15 + i * 16); });
  }
}

// A line without axes, for a card.
export function spark(canvas, values, color) {
  const [pen, width, height] = fit(canvas);
  if (values.length < 2) return;
  const most = Math.max(1, ...values), step = width / (values.length - 1);
  const trace = () => values.forEach((value, i) => pen.lineTo(i * step, height - 2 - (value / most) * (height - 5)));
  pen.beginPath(); trace(); pen.lineTo(width, height); pen.lineTo(0, height); pen.closePath();
  pen.fillStyle = css(color); pen.globalAlpha = 0.13; pen.fill(); pen.globalAlpha = 1;
  pen.beginPath(); trace();
  pen.strokeStyle = css(color); pen.lineWidth = 1.5; pen.lineJoin = "round"; pen.stroke();
}
