"""The engine runs models, captures and edits their attention, and replays layers. It knows no task and no figure."""
