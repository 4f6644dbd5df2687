'use strict';
/* A stand-in for LuCI's own modules, as far as a view uses them: same names, same arguments. */

const _ = text => text;
const L = { env: {} };

function append(node, child) {
	if (Array.isArray(child))
		child.forEach(each => append(node, each));
	else if (child instanceof Node)
		node.appendChild(child);
	else if (child != null)
		node.appendChild(document.createTextNode(String(child)));
}

function E(tag, attributes, children) {
	const node = document.createElement(tag);
	if (attributes && (Array.isArray(attributes) || typeof attributes !== 'object' || attributes instanceof Node)) {
		children = attributes;
		attributes = {};
	}
	for (const [ name, value ] of Object.entries(attributes || {})) {
		if (typeof value === 'function')
			node.addEventListener(name, value);
		else if (value != null)
			node.setAttribute(name, value);
	}
	append(node, children);
	return node;
}

const dom = {
	content: (node, children) => {
		node.replaceChildren();
		append(node, children);
		return node;
	}
};

const calls = [];
const rpc = {
	declare: options => (...given) => {
		const args = {};
		options.params.forEach((name, n) => { if (given[n] !== undefined) args[name] = given[n]; });
		calls.push([ options.method, args ]);
		return fetch('/ubus', { method: 'POST', body: JSON.stringify([ options.object, options.method, args ]) })
			.then(answer => answer.ok ? answer.json() : Promise.reject(new Error(`HTTP ${answer.status}`)));
	}
};

const polls = [];
const poll = { add: (fn, seconds) => polls.push([ fn, seconds ]) };

const ui = {
	createHandlerFn: (self, fn, ...bound) => event => {
		const button = event.currentTarget;
		button.disabled = true;
		return Promise.resolve(fn.apply(self, [ ...bound, event ])).finally(() => { button.disabled = false; });
	},
	showModal: (title, children) => {
		ui.hideModal();
		const box = E('div', { 'class': 'modal' }, [ E('h4', {}, [ title ]) ]);
		append(box, children);
		document.body.appendChild(E('div', { id: 'modal_overlay' }, [ box ]));
		return box;
	},
	hideModal: () => document.querySelectorAll('#modal_overlay').forEach(each => each.remove()),
	addNotification: (title, children, ...classes) => {
		const box = E('div', { 'class': [ 'alert-message', ...classes ].join(' ') }, []);
		append(box, children);
		document.getElementById('maincontent').prepend(box);
	}
};

const view = { extend: members => members };

async function show() {
	const source = await (await fetch('/view.js')).text();
	const names = [ ...source.matchAll(/^'require (\w+)';$/gm) ].map(match => match[1]);
	const known = { view, rpc, poll, ui, dom };
	const made = new Function('_', 'L', 'E', ...names, source)(_, L, E, ...names.map(name => known[name]));
	const data = await made.load();
	document.getElementById('view').replaceChildren(made.render(data));
	return made;
}

function later(ms) {
	return new Promise(resolve => setTimeout(resolve, ms));
}

/* Carries out steps such as [["click", "Start"], ["choose", "Status", "failed"]], then tells. */
async function drive(steps) {
	const told = { texts: [], calls: calls };
	for (const [ what, name, value ] of steps) {
		if (what === 'click') {
			const found = [ ...document.querySelectorAll('button') ].filter(each => each.textContent === name);
			found[found.length - 1 - (value || 0)].click();
		} else if (what === 'choose') {
			const found = document.querySelector(`select[aria-label="${name}"]`);
			found.value = value;
			found.dispatchEvent(new Event('change'));
		} else if (what === 'poll') {
			await Promise.all(polls.map(([ fn ]) => fn()));
		} else if (what === 'text') {
			told.texts.push([ ...document.querySelectorAll(name) ].map(each => each.textContent));
		}
		await later(150);
	}
	told.wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
	document.body.appendChild(E('script', { type: 'application/json', id: 'told' }, [ JSON.stringify(told).replaceAll('<', '\\u003c') ]));
}

const asked = new URLSearchParams(location.search);
document.documentElement.lang = asked.get('lang') || 'en';
document.documentElement.dataset.darkmode = asked.get('dark') === '1';
window.addEventListener('error', event => { document.title = `error: ${event.message}`; });
window.addEventListener('unhandledrejection', event => { document.title = `error: ${event.reason}`; });
show().then(() => drive(JSON.parse(asked.get('steps') || '[]')));
