// The timing wheel: a ring a level, the coarsest outside. What is due in a while waits far out, and moves inwards as its
// time comes nearer. A lit bucket holds tasks, the brighter the more; the hand of each ring stands at the present tick.

import { css, fit, number } from "./charts.js";

const TAU = 2 * Math.PI;
const still = window.matchMedia("(prefers-reduced-motion: reduce)");

export const span = (ms) => {
  if (ms < 1000) return `${number(Math.round(ms * 10) / 10)} ms`;
  if (ms < 60_000) return `${number(Math.round(ms / 100) / 10)} s`;
  if (ms < 3_600_000) return `${number(Math.round(ms / 6_000) / 10)} min`;
  if (ms < 172_800_000) return `${number(Math.round(ms / 360_000) / 10)} h`;
  return `${number(Math.round(ms / 8_640_000) / 10)} days`;
};

export class Wheel {
  constructor(canvas) {
    this.canvas = canvas;
    this.timer = null;
    this.frames = 0;
    const turn = () => {
      if (this.timer && !still.matches && !document.hidden) this.redraw();
      requestAnimationFrame(turn);
    };
    requestAnimationFrame(turn);
  }

  // What the service said, and when it came: in between the hand goes on by our own clock.
  show(timer) {
    this.timer = timer;
    this.at = performance.now();
    if (still.matches) this.redraw();
  }

  // The present tick, with its fraction.
  tick() {
    const passed = this.timer.paused || still.matches ? 0 : Math.min(performance.now() - this.at, 3000);
    return this.timer.now_tick + passed / this.timer.tick_ms;
  }

  redraw() {
    const [pen, width] = fit(this.canvas), { buckets, wheel_size: size, tick_ms, pending } = this.timer;
    if (width < 80) return; // hidden
    const centre = width / 2, inner = width * 0.15, outer = width * 0.49, tick = this.tick();
    const ring = (outer - inner) / buckets.length, most = Math.max(1, ...buckets.flat());
    this.frames += 1;
    this.canvas.dataset.tick = tick.toFixed(1);
    this.canvas.dataset.frames = this.frames;

    buckets.forEach((level, depth) => {
      const slots = level.length, near = inner + depth * ring + 2.5, far = inner + (depth + 1) * ring - 2.5, ticks = size ** depth;
      const place = (tick / ticks) % slots, here = Math.floor(place), turn_ms = ticks * slots * tick_ms;
      level.forEach((tasks, slot) => {
        const from = (slot / slots) * TAU - TAU / 4 + 0.6 / near, to = ((slot + 1) / slots) * TAU - TAU / 4 - 0.6 / near;
        pen.beginPath(); pen.arc(centre, centre, far, from, to); pen.arc(centre, centre, near, to, from, true); pen.closePath();
        pen.fillStyle = css("--faint"); pen.globalAlpha = 1; pen.fill();
        if (tasks) {
          pen.fillStyle = css("--accent");
          pen.globalAlpha = 0.3 + 0.7 * Math.sqrt(tasks / most);
          pen.fill();
        }
        if (slot === here && turn_ms > 900) { pen.strokeStyle = css("--ink"); pen.globalAlpha = 0.35; pen.lineWidth = 1; pen.stroke(); }
      });
      // A ring that turns faster than a screen can show is a blur, and is drawn as one.
      const angle = (place / slots) * TAU - TAU / 4;
      pen.globalAlpha = 1;
      if (turn_ms < 250) {
        pen.globalAlpha = 0.22; pen.strokeStyle = css("--parked"); pen.lineWidth = 3;
        pen.beginPath(); pen.arc(centre, centre, (near + far) / 2, 0, TAU); pen.stroke();
      } else {
        pen.strokeStyle = css("--parked"); pen.lineWidth = 3; pen.lineCap = "round";
        pen.beginPath();
        pen.moveTo(centre + near * Math.cos(angle), centre + near * Math.sin(angle));
        pen.lineTo(centre + far * Math.cos(angle), centre + far * Math.sin(angle));
        pen.stroke();
        const tail = pen.createConicGradient ? pen.createConicGradient(angle - 0.9, centre, centre) : null;
        if (tail) {
          const color = css("--parked");
          tail.addColorStop(0, `${color}00`); tail.addColorStop(0.9 / TAU, `${color}66`); tail.addColorStop(0.9 / TAU + 0.0001, `${color}00`); tail.addColorStop(1, `${color}00`);
          pen.beginPath(); pen.arc(centre, centre, far, angle - 0.9, angle); pen.arc(centre, centre, near, angle, angle - 0.9, true); pen.closePath();
          pen.fillStyle = tail; pen.fill();
        }
      }
      pen.globalAlpha = 1;
    });

    pen.textAlign = "center"; pen.textBaseline = "middle";
    pen.fillStyle = css("--ink"); pen.font = `640 ${Math.round(width * 0.058)}px system-ui, sans-serif`;
    pen.fillText(number(pending), centre, centre - width * 0.014);
    pen.fillStyle = css("--soft"); pen.font = `${Math.round(width * 0.029)}px system-ui, sans-serif`;
    pen.fillText("pending", centre, centre + width * 0.036);
  }
}
