// One line of a log as an element: the same as console/logs/templates/row.html makes. Everything that comes from the log
// is a text node.

export function rowElement(launch, line, query) {
  const row = document.createElement("div");
  row.className = `log-row log-${line.level ?? "waiting"}`;
  row.id = `L${line.number}`;
  const number = document.createElement("a");
  number.className = "log-number";
  number.href = `/log?launch=${encodeURIComponent(launch)}&line=${line.number}#L${line.number}`;
  number.textContent = line.number;
  row.append(number);
  const marked = line.level === "error" || line.level === "warning";
  const level = document.createElement(marked ? "abbr" : "span");
  level.className = "log-level";
  if (marked) {
    level.title = line.level;
    level.textContent = line.level[0].toUpperCase();
  }
  row.append(level, cell("log-time", line.time), cell("log-process", line.process), textCell(line, query));
  return row;
}

function cell(name, text) {
  const node = document.createElement("span");
  node.className = name;
  node.textContent = text ?? "";
  return node;
}

function textCell(line, query) {
  const text = cell("log-text");
  const pieces = afterPrefix(line.segments ?? [], line.prefix ?? 0);
  const hits = query ? occurrences(pieces.map(([piece]) => piece).join(""), query) : [];
  let at = 0;
  for (const [piece, classes] of pieces) {
    const holder = classes ? cell(classes) : text;
    appendMarked(holder, piece, at, hits);
    if (holder !== text) text.append(holder);
    at += piece.length;
  }
  if (line.cut) text.append(cell("log-cut", `${line.cut.toLocaleString("en")} more characters: download the log to read them`));
  return text;
}

function afterPrefix(segments, prefix) {
  // The server counts characters, JavaScript counts UTF-16 units; a prefix is plain ASCII.
  const left = [];
  for (const [text, classes] of segments) {
    if (prefix < text.length) left.push([text.slice(prefix), classes]);
    prefix = Math.max(0, prefix - text.length);
  }
  return left;
}

function occurrences(text, query) {
  const found = [];
  const lower = text.toLowerCase();
  const wanted = query.toLowerCase();
  for (let at = lower.indexOf(wanted); at >= 0 && found.length < 100; at = lower.indexOf(wanted, at + wanted.length)) {
    found.push([at, at + wanted.length]);
  }
  return found;
}

function appendMarked(holder, piece, start, hits) {
  let done = 0;
  for (const [from, to] of hits) {
    const begin = Math.max(from - start, done);
    const end = Math.min(to - start, piece.length);
    if (begin >= end) continue;
    if (begin > done) holder.append(piece.slice(done, begin));
    const mark = document.createElement("mark");
    mark.textContent = piece.slice(begin, end);
    holder.append(mark);
    done = end;
  }
  if (done < piece.length) holder.append(piece.slice(done));
}
